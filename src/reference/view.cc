#include "reference/view.h"

#include <cmath>
#include <limits>

namespace tessera::reference {

namespace {

constexpr int kBf16Exponent = 8;
constexpr int kF16Exponent = 5;

}  // namespace

double decode16(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  double magnitude;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    magnitude = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t encode16(double value, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | infinity | (1 << (mantissa_bits - 1)));
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
  int exponent;
  std::frexp(value, &exponent);  // |value| in [2^(exponent - 1), 2^exponent)
  const int binade = value == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
  if (binade > bias) return static_cast<uint16_t>(sign | infinity);
  const double quanta = std::nearbyint(std::ldexp(std::fabs(value), mantissa_bits - binade));
  // A normal number has its implicit bit among the quanta, which raises the exponent field by one; so does a carry.
  const int magnitude = ((binade + bias - 1) << mantissa_bits) + static_cast<int>(quanta);
  return static_cast<uint16_t>(sign | (magnitude < infinity ? magnitude : infinity));
}

int64_t View::elements() const {
  int64_t n = 1;
  for (int axis = 0; axis < tensor_.ndim; ++axis) n *= tensor_.shape[axis];
  return n;
}

int64_t View::offset(int64_t index) const {
  int64_t offset = 0;
  for (int axis = tensor_.ndim - 1; axis >= 0; --axis) {
    offset += index % tensor_.shape[axis] * tensor_.stride[axis];
    index /= tensor_.shape[axis];
  }
  return offset;
}

double View::load(int64_t offset) const {
  switch (tensor_.dtype) {
    case TESSERA_BF16: return decode16(static_cast<const uint16_t*>(tensor_.data)[offset], kBf16Exponent);
    case TESSERA_F16: return decode16(static_cast<const uint16_t*>(tensor_.data)[offset], kF16Exponent);
    case TESSERA_F32: return static_cast<const float*>(tensor_.data)[offset];
    case TESSERA_I8: return static_cast<const int8_t*>(tensor_.data)[offset];
    default: return static_cast<const int32_t*>(tensor_.data)[offset];
  }
}

double View::get(int64_t index) const { return load(offset(index)); }

void View::set(int64_t index, double value) const {
  const int64_t at = offset(index);
  switch (tensor_.dtype) {
    case TESSERA_BF16: static_cast<uint16_t*>(tensor_.data)[at] = encode16(value, kBf16Exponent); break;
    case TESSERA_F16: static_cast<uint16_t*>(tensor_.data)[at] = encode16(value, kF16Exponent); break;
    case TESSERA_F32: static_cast<float*>(tensor_.data)[at] = static_cast<float>(value); break;
    case TESSERA_I8: static_cast<int8_t*>(tensor_.data)[at] = static_cast<int8_t>(value); break;
    default: static_cast<int32_t*>(tensor_.data)[at] = static_cast<int32_t>(value);
  }
}

std::vector<double> View::values() const {
  std::vector<double> all;
  for (int64_t i = 0; i < elements(); i += last_size()) {
    const std::vector<double> next = row(i, last_size());
    all.insert(all.end(), next.begin(), next.end());
  }
  return all;
}

void View::set_values(const std::vector<double>& values) const {
  for (size_t i = 0; i < values.size(); ++i) set(static_cast<int64_t>(i), values[i]);
}

std::vector<double> View::row(int64_t index, int64_t n) const {
  std::vector<double> row(static_cast<size_t>(n));
  const int64_t first = n == 0 ? 0 : offset(index);
  const int64_t stride = tensor_.ndim == 0 ? 0 : tensor_.stride[tensor_.ndim - 1];
  for (int64_t i = 0; i < n; ++i) row[static_cast<size_t>(i)] = load(first + i * stride);
  return row;
}

}  // namespace tessera::reference
