// Small tensors written out, and results compared with numbers worked out by hand.
#ifndef TESSERA_TESTS_BY_HAND_H_
#define TESSERA_TESTS_BY_HAND_H_

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tensors.h"

namespace tessera::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline const double kLog2 = std::log(2.0);

inline TestTensor make(tessera_dtype dtype, const Shape& shape, const std::vector<double>& values) {
  TestTensor t(dtype, shape);
  for (size_t i = 0; i < values.size(); ++i) t.set(static_cast<int64_t>(i), values[i]);
  return t;
}
inline TestTensor f32(const Shape& shape, const std::vector<double>& values) {
  return make(TESSERA_F32, shape, values);
}
inline TestTensor i32(const Shape& shape, const std::vector<double>& values) {
  return make(TESSERA_I32, shape, values);
}

inline void expect_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance = 1e-6) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i])) {
      EXPECT_EQ(got[i], want[i]) << "at " << i;
    } else {
      EXPECT_NEAR(got[i], want[i], tolerance) << "at " << i;
    }
  }
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_BY_HAND_H_
