// Reading and writing the caller's strided tensors as doubles, for the oracle. It has its own conversions on purpose:
// as it shares nothing with the kernels, a wrong rounding there cannot hide here.
#ifndef TESSERA_REFERENCE_VIEW_H_
#define TESSERA_REFERENCE_VIEW_H_

#include <cstdint>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::reference {

// Elements are addressed by their row-major index, as if the tensor were dense; the view applies the strides. A tensor
// without axes is one number.
class View {
 public:
  explicit View(const tessera_tensor& tensor) : tensor_(tensor) {}

  bool given() const { return tensor_.ndim != 0; }
  int rank() const { return tensor_.ndim; }
  int64_t size(int axis) const { return tensor_.shape[axis]; }
  int64_t last_size() const { return tensor_.ndim == 0 ? 1 : tensor_.shape[tensor_.ndim - 1]; }
  int64_t elements() const;

  double get(int64_t index) const;
  void set(int64_t index, double value) const;
  // All elements, row-major.
  std::vector<double> values() const;
  void set_values(const std::vector<double>& values) const;
  // `n` neighbours along the last axis.
  std::vector<double> row(int64_t index, int64_t n) const;

 private:
  int64_t offset(int64_t index) const;
  double load(int64_t offset) const;

  tessera_tensor tensor_;
};

// The two 16-bit formats: a sign, exponent bits, and 15 minus that many mantissa bits.
double decode16(uint16_t bits, int exponent_bits);
// Rounded to nearest even; what lies beyond the largest finite number becomes infinity.
uint16_t encode16(double value, int exponent_bits);

}  // namespace tessera::reference

#endif  // TESSERA_REFERENCE_VIEW_H_
