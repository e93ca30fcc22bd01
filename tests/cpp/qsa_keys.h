// Raw index keys and the rule that compresses them, for tests; every variant of the kernel; and how near a key must come.
#ifndef TESSERA_TESTS_QSA_KEYS_H_
#define TESSERA_TESTS_QSA_KEYS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "bounds.h"
#include "cpu/features.h"
#include "ops/compress_keys/variants.h"
#include "random.h"
#include "tensors.h"
#include "tessera/tessera.h"

namespace tessera::test {

inline std::vector<std::string> key_variants() {
  std::vector<std::string> names;
  for (const compress_keys::Variant& v : compress_keys::variants()) {
    if (why_unavailable(*find_variant(v.name)).empty()) names.emplace_back(v.name);
  }
  return names;
}

// A tensor of some rank with gaps and swapped axes, if asked.
inline TestTensor maybe_gappy(tessera_dtype dtype, const Shape& shape, bool gaps, int64_t last = 1) {
  return TestTensor(dtype, shape, gaps ? gappy_strides(shape, last) : dense_strides(shape));
}

struct KeyCase {
  int64_t requests = 2;
  int64_t tokens = 39;
  int64_t dim = 32;
  int64_t block = 4;
  int64_t rotary = 16;
  double eps = 1e-6;
  double theta = 1e7;
  bool round = false;
  bool wide_weight = false;  // f32
  bool gaps = false;

  int64_t blocks() const { return tokens / block; }
};

inline void PrintTo(const KeyCase& c, std::ostream* os) {
  *os << "B " << c.requests << ", S " << c.tokens << ", D " << c.dim << ", bs " << c.block << ", rotary " << c.rotary
      << ", eps " << c.eps << ", theta " << c.theta << (c.round ? ", round" : "")
      << (c.wide_weight ? ", f32 weight" : "") << (c.gaps ? ", gaps" : "");
}

// Raw keys of some requests and what is the same in every call with them.
struct Keys {
  Keys(const KeyCase& c, tessera_dtype of, uint64_t stream = 0) : shape(c), dtype(of) {
    Random random(stream * 1000 + static_cast<uint64_t>(c.dim + c.block));
    raw = maybe_gappy(dtype, {c.requests, c.tokens, c.dim}, c.gaps);
    raw.fill_normal(random);
    weight = maybe_gappy(c.wide_weight ? TESSERA_F32 : dtype, {c.dim}, c.gaps, c.gaps ? 3 : 1);
    for (int64_t d = 0; d < c.dim; ++d) weight.set(d, 0.2 * random.normal());
  }

  // Points into this object.
  tessera_qsa_key_rule rule() const {
    return {weight, shape.block, &shape.eps, shape.rotary, &shape.theta, shape.round ? 1 : 0};
  }
  TestTensor out() const { return maybe_gappy(dtype, {shape.requests, shape.blocks(), shape.dim}, shape.gaps); }
  tessera_qsa_compress_keys_args args(const TestTensor& to) const { return {raw, rule(), positions, cos, sin, to}; }
  TestTensor compress(const tessera_context& context = {}) const {
    const TestTensor to = out();
    const tessera_qsa_compress_keys_args a = args(to);
    EXPECT_EQ(tessera_qsa_compress_keys(&a, &context), TESSERA_OK) << tessera_last_error();
    return to;
  }
  TestTensor expected() const {
    tessera_context context = {};
    context.backend = TESSERA_BACKEND_REFERENCE;
    return compress(context);
  }

  KeyCase shape;
  tessera_dtype dtype;
  TestTensor raw, weight, positions, cos, sin;
};

// What the error of each feature is relative to before RoPE: mean |raw| * |1 + w| / sqrt(mean square + eps), [B, blocks, D].
inline std::vector<double> key_reach(const Keys& call) {
  const KeyCase& c = call.shape;
  std::vector<double> reach;
  for (int64_t g = 0; g < c.requests * c.blocks(); ++g) {
    const int64_t first = g / c.blocks() * c.tokens + g % c.blocks() * c.block;
    std::vector<double> sizes;
    double squares = 0;
    for (int64_t d = 0; d < c.dim; ++d) {
      double sum = 0, size = 0;
      for (int64_t t = first; t < first + c.block; ++t) {
        sum += call.raw.get(t * c.dim + d);
        size += std::fabs(call.raw.get(t * c.dim + d));
      }
      squares += sum / static_cast<double>(c.block) * (sum / static_cast<double>(c.block));
      sizes.push_back(size / static_cast<double>(c.block) * std::fabs(1 + call.weight.get(d)));
    }
    for (const double size : sizes) reach.push_back(size / std::sqrt(squares / static_cast<double>(c.dim) + c.eps));
  }
  return reach;
}

// Whether keys are as near to those of the reference as the roundings on the way allow. A mean that falls between two
// numbers of the type may go to either: one unit.
inline testing::AssertionResult keys_within(const TestTensor& got, const Keys& call) {
  const TestTensor want = call.expected();
  const std::vector<double> reach = key_reach(call);
  const KeyCase& c = call.shape;
  const double unit = call.dtype == TESSERA_BF16 ? 0x1p-7 : call.dtype == TESSERA_F16 ? 0x1p-10 : 0x1p-18;
  const int64_t half = c.rotary / 2;
  Worst worst;
  for (int64_t i = 0; i < got.elements(); ++i) {
    const int64_t d = i % c.dim;
    double size = reach[static_cast<size_t>(i)];
    if (d < c.rotary) size += reach[static_cast<size_t>(d < half ? i + half : i - half)];
    const double g = got.get(i), w = want.get(i);
    const double half_unit = half_ulp(std::max(std::fabs(g), std::fabs(w)), call.dtype);
    worst.add(i, g, w, unit * (c.round ? 4 : 1) * size + 2 * half_unit);
  }
  return worst.within("key");
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_QSA_KEYS_H_
