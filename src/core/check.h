// The checks that all operators share. An operator's check.cc describes its tensors with these, in the order of the
// signature, and the first complaint is the one reported.
#ifndef TESSERA_CORE_CHECK_H_
#define TESSERA_CORE_CHECK_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/status.h"
#include "tessera/tessera.h"

namespace tessera {

const char* dtype_name(tessera_dtype dtype);
int64_t dtype_size(tessera_dtype dtype);  // 0 for TESSERA_OTHER_DTYPE

inline bool given(const tessera_tensor& t) { return t.ndim != 0; }
bool is_empty(const tessera_tensor& t);           // has an axis of size 0
std::string shape_text(const tessera_tensor& t);  // "[2, 3]"

// The number for the one row of a tensor of rank 1 has no axes, as which it would count as missing. Checks see a vector of
// one.
tessera_tensor as_vector(tessera_tensor t);

class Checker {
 public:
  bool ok() const { return status_.ok(); }
  Status take() { return std::move(status_); }
  // `complaint` makes the Status; only a call that fails pays for its message.
  template <class Complaint>
  void require(bool condition, const Complaint& complaint) {
    if (ok() && !condition) status_ = complaint();
  }

  // Given, of one of these ranks and dtypes, sizes and strides not negative, data present and aligned to the element.
  // `axes` is how messages write the shape, "[B, Sq, Hq, D]".
  void tensor(const char* name, const tessera_tensor& t, const char* axes, std::initializer_list<int> ranks,
              std::initializer_list<tessera_dtype> dtypes);
  void same_dtype(const char* name, const tessera_tensor& t, const char* other_name, const tessera_tensor& other);
  // Axis `axis` of t has `size`; `what` says why, "Hkv of k".
  void axis(const char* name, const tessera_tensor& t, int axis, int64_t size, const char* what);
  void unit_feature(const char* name, const tessera_tensor& t);
  // A number for each row: the axes of `rows` without its last, which may leave none. `what`: the name of `rows`.
  void per_row(const char* name, const tessera_tensor& t, const tessera_tensor& rows, const char* what,
               tessera_dtype dtype);
  // Not more features than kernels are made for.
  void head_dim(const char* name, int64_t dim);
  // No two elements of t share memory.
  void output(const char* name, const tessera_tensor& t);
  // No element of `out` shares memory with an element of `in`.
  void disjoint(const char* out_name, const tessera_tensor& out, const char* in_name, const tessera_tensor& in);

 private:
  Status status_;
};

}  // namespace tessera

#endif  // TESSERA_CORE_CHECK_H_
