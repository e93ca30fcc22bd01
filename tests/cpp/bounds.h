// The accuracy contract: how far a result may be from the oracle.
//   out    eps sum_j p_j |v_j| + half a unit in the last place of the output type; eps = 2^-8 bf16, 2^-11 f16, 2^-18
//   f32 lse, m 1e-4 absolute for bf16 and f16, 1e-5 for f32 l      1e-4 relative
// These hold for inputs and scales with scores of ordinary size. `reach` bounds a row's |score|; beyond kReach, f32
// itself resolves scores no better than in proportion to it, and so the bounds grow with it.
#ifndef TESSERA_TESTS_BOUNDS_H_
#define TESSERA_TESTS_BOUNDS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/reference.h"
#include "reference/view.h"
#include "tensors.h"

namespace tessera::test {

inline constexpr double kReach = 16;

inline double growth(double reach) { return std::max(1.0, reach / kReach); }

inline double out_epsilon(tessera_dtype input, double reach) {
  const double eps = input == TESSERA_BF16 ? 0x1p-8 : input == TESSERA_F16 ? 0x1p-11 : 0x1p-18;
  return std::max(eps, 0x1p-18 * growth(reach));
}

inline double half_ulp(double x, tessera_dtype dtype) {
  const int mantissa_bits = dtype == TESSERA_BF16 ? 7 : dtype == TESSERA_F16 ? 10 : 23;
  const int smallest = dtype == TESSERA_F16 ? -14 : -126;
  int exponent;
  std::frexp(x, &exponent);
  return std::ldexp(0.5, std::max(exponent - 1, smallest) - mantissa_bits);
}

// The largest error as a share of its bound, and where.
struct Worst {
  double share = 0;
  int64_t index = -1;
  double got = 0, want = 0, bound = 0;

  void add(int64_t i, double g, double w, double b) {
    const bool equal = g == w || (std::isnan(g) && std::isnan(w));
    const double s = equal ? 0 : std::fabs(g - w) / b;
    if (index >= 0 && s <= share) return;
    *this = {std::isnan(s) ? std::numeric_limits<double>::infinity() : s, i, g, w, b};
  }
  testing::AssertionResult within(const char* what) const {
    if (share <= 1) return testing::AssertionSuccess();
    return testing::AssertionFailure() << what << "[" << index << "] is " << got << ", want " << want << " within "
                                       << bound << " (" << share << " of the bound)";
  }
};

// `out` against out and spread; reach may be empty.
inline testing::AssertionResult out_within(const TestTensor& out, tessera_dtype input, const std::vector<double>& want,
                                           const std::vector<double>& spread, const std::vector<double>& reach = {}) {
  Worst worst;
  const std::vector<double> got = out.values().values();
  for (size_t i = 0; i < got.size(); ++i) {
    const double eps = out_epsilon(input, reach.empty() ? 0 : reach[i * reach.size() / got.size()]);
    const double half = half_ulp(std::max(std::fabs(want[i]), std::fabs(got[i])), out.view().dtype);
    worst.add(static_cast<int64_t>(i), got[i], want[i], eps * spread[i] + half);
  }
  return worst.within("out");
}

// lse or m.
inline testing::AssertionResult log_within(const char* what, const TestTensor& x, tessera_dtype input,
                                           const std::vector<double>& want, const std::vector<double>& reach = {}) {
  Worst worst;
  const std::vector<double> got = x.values().values();
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = (input == TESSERA_F32 ? 1e-5 : 1e-4) * growth(reach.empty() ? 0 : reach[i]);
    worst.add(static_cast<int64_t>(i), got[i], want[i], bound);
  }
  return worst.within(what);
}

// The parts of a state: o is out * l, un-normalised.
inline testing::AssertionResult state_within(const TestTensor& o, const TestTensor& l, const TestTensor& m,
                                             tessera_dtype input, const reference::Attention& want) {
  std::vector<double> want_o = want.out;
  std::vector<double> spread = want.spread;
  for (size_t i = 0; i < want_o.size(); ++i) {
    const double row_l = want.l[i * want.l.size() / want_o.size()];
    want_o[i] *= row_l;
    spread[i] *= row_l;
  }
  const auto o_close = out_within(o, input, want_o, spread, want.reach);
  if (!o_close) return o_close;
  Worst worst;
  const std::vector<double> got = l.values().values();
  for (size_t i = 0; i < got.size(); ++i) {
    worst.add(static_cast<int64_t>(i), got[i], want.l[i], 1e-4 * want.l[i] * growth(want.reach[i]));
  }
  const auto l_close = worst.within("l");
  return l_close ? log_within("m", m, input, want.m, want.reach) : l_close;
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_BOUNDS_H_
