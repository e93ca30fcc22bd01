// qsa_compress_keys against its definition, in every variant, and what it must not depend on.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "by_hand.h"
#include "qsa_keys.h"

namespace tessera::test {
namespace {

class QsaCompress : public testing::TestWithParam<std::string> {
 protected:
  tessera_context context() const {
    tessera_context c = {};
    c.variant = GetParam().c_str();
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, QsaCompress, testing::ValuesIn(key_variants()),
                         [](const auto& test) { return test.param; });

std::vector<KeyCase> cases() {
  std::vector<KeyCase> all = {
      {.requests = 0},
      {.tokens = 0},
      {.tokens = 3},
      {.requests = 1, .tokens = 4, .dim = 1, .rotary = 0},
      {.requests = 1, .tokens = 300, .dim = 128, .rotary = 64},
      {.requests = 1, .tokens = 2600, .dim = 128, .rotary = 64, .round = true},
      {.dim = 4096, .rotary = 4096, .gaps = true},
      {.dim = 4095, .rotary = 4094},
      {.eps = 0, .theta = 3.5},
      {.eps = 2.5, .theta = 1e4, .wide_weight = true},
      {.tokens = 100, .block = 100},
      {.requests = 1, .tokens = 20000, .dim = 8, .block = 10000, .rotary = 8},
  };
  for (const int64_t dim : {2, 7, 8, 15, 16, 17, 31, 33, 64, 72, 128, 136, 200, 513}) {
    for (const bool round : {false, true}) {
      all.push_back({.dim = dim, .rotary = dim / 2 * 2, .round = round, .gaps = true});
      all.push_back({.dim = dim, .rotary = dim / 4 * 2, .round = round, .wide_weight = true});
      all.push_back({.dim = dim, .rotary = 2, .round = round});
    }
  }
  for (const int64_t block : {1, 2, 3, 5, 7, 16}) all.push_back({.block = block, .gaps = block % 2 != 0});
  return all;
}

TEST_P(QsaCompress, MatchesTheDefinition) {
  for (const KeyCase& c : cases()) {
    for (const tessera_dtype dtype : kFloats) {
      SCOPED_TRACE(testing::PrintToString(c) + ", " + dtype_name(dtype));
      const Keys call(c, dtype);
      const TestTensor raw = call.raw.clone(), got = call.compress(context());
      EXPECT_TRUE(keys_within(got, call));
      EXPECT_TRUE(got.all_written() && got.gaps_untouched());
      EXPECT_TRUE(raw.all_bits() == call.raw.all_bits());
      if (HasFailure()) return;
    }
  }
}

// Roundings are where the definition puts them: nearly all bits agree with the oracle's, which rounds in f64.
TEST_P(QsaCompress, RoundsWhereTheDefinitionDoes) {
  for (const tessera_dtype dtype : {TESSERA_BF16, TESSERA_F16}) {
    for (const bool round : {false, true}) {
      const Keys call({.requests = 1, .tokens = 4000, .dim = 64, .rotary = 32, .round = round}, dtype);
      const std::vector<uint32_t> got = call.compress(context()).all_bits(), want = call.expected().all_bits();
      int64_t differ = 0;
      for (size_t i = 0; i < got.size(); ++i) differ += got[i] != want[i] ? 1 : 0;
      EXPECT_LT(differ, static_cast<int64_t>(got.size()) / 200) << dtype_name(dtype) << ", round " << round;
    }
  }
}

TEST_P(QsaCompress, ByHand) {
  const TestTensor raw = f32({1, 3, 2}, {1, 0, 5, 8, 7, 7}), weight = f32({2}, {1, 0});
  const TestTensor positions = i32({1, 3}, {1, -9, 4}), out(TESSERA_F32, {1, 1, 2});
  const double eps = 2.5, theta = 77;  // the one pair turns by the position
  const tessera_qsa_compress_keys_args a = {raw, {weight, 2, &eps, 2, &theta, 0}, positions, {}, {}, out};
  const tessera_context c = context();
  ASSERT_EQ(tessera_qsa_compress_keys(&a, &c), TESSERA_OK) << tessera_last_error();
  // Mean (3, 4), mean square 12.5, so the factor is 1 / sqrt(15); the norm gives (6, 4) / sqrt(15).
  const double x = 6 / std::sqrt(15), y = 4 / std::sqrt(15);
  expect_near(out.values().values(), {x * std::cos(1) - y * std::sin(1), y * std::cos(1) + x * std::sin(1)});
}

// The mean is rounded before the norm: 1 + 2^-9 is not a bf16, and the norm would tell it from 1.
TEST_P(QsaCompress, RoundsTheMeanFirst) {
  Keys call({.requests = 1, .tokens = 4, .dim = 2, .rotary = 0, .eps = 0}, TESSERA_BF16);
  call.weight.fill(0);
  for (int64_t i = 0; i < 8; ++i) call.raw.set(i, i % 2 == 0 ? 1 : 2);
  call.raw.set(0, 1 + 0x1p-7);
  const TestTensor got = call.compress(context());
  for (int64_t t = 0; t < 4; ++t) call.raw.set(2 * t, 1);
  EXPECT_TRUE(call.compress(context()).all_bits() == got.all_bits());
}

TEST_P(QsaCompress, AnglesAreExactAtLargePositions) {
  for (const double theta : {1e7, 1e4, 0.5}) {
    Keys call({.requests = 1, .tokens = 32, .dim = 64, .block = 1, .rotary = 64, .theta = theta}, TESSERA_F32);
    call.positions = TestTensor(TESSERA_I32, {1, 32});
    const int64_t last = theta < 1 ? 1 << 16 : 1 << 21;  // the slowest pair turns once, the fastest theta^-1 times
    Random random(3);
    for (int64_t t = 0; t < 32; ++t) call.positions.set(t, static_cast<double>(last - random.below(last / 2)));
    EXPECT_TRUE(keys_within(call.compress(context()), call)) << theta;
    for (int64_t t = 0; t < 32; ++t) call.positions.set(t, -call.positions.get(t));
    EXPECT_TRUE(keys_within(call.compress(context()), call)) << theta;
  }
  Keys call({.requests = 1, .tokens = 4, .dim = 64, .block = 1, .rotary = 64}, TESSERA_F32);
  call.positions = i32({1, 4}, {INT_MAX, INT_MIN, 1 << 30, 0});
  EXPECT_TRUE(keys_within(call.compress(context()), call));
}

TEST_P(QsaCompress, CosinesOfTheCallerTurnAsPositionsDo) {
  for (const bool gaps : {false, true}) {
    for (const tessera_dtype dtype : kFloats) {
      Keys call({.gaps = gaps}, dtype);
      Random random(5);
      call.positions = maybe_gappy(TESSERA_I32, {2, 39}, gaps, gaps ? 2 : 1);
      for (int64_t i = 0; i < 78; ++i) call.positions.set(i, static_cast<double>(random.below(5000)));
      const TestTensor want = call.compress(context());
      Keys given = call;
      given.cos = maybe_gappy(TESSERA_F32, {2, 9, 8}, gaps);
      given.sin = maybe_gappy(TESSERA_F32, {2, 9, 8}, false);
      for (int64_t i = 0; i < given.cos.elements(); ++i) {
        const double position = call.positions.get(i / 8 / 9 * 39 + i / 8 % 9 * 4);
        const double angle = position * std::pow(1e7, -static_cast<double>(i % 8) / 8);
        given.cos.set(i, std::cos(angle));
        given.sin.set(i, std::sin(angle));
      }
      given.positions = TestTensor();
      EXPECT_TRUE(keys_within(given.compress(context()), call));
      EXPECT_TRUE(keys_within(given.compress(context()), given));
      EXPECT_TRUE(keys_within(want, call));
    }
  }
}

TEST_P(QsaCompress, BitsDoNotDependOnThreadsOrParts) {
  const Keys call({.requests = 3, .tokens = 1500, .dim = 128, .rotary = 64}, TESSERA_BF16);
  const std::vector<uint32_t> want = call.compress(context()).all_bits();
  tessera_context c = context();
  for (const int threads : {1, 2, 5}) {
    c.executor = {TESSERA_EXECUTOR_THREADS, threads, 0, 0, nullptr, nullptr};
    EXPECT_TRUE(call.compress(c).all_bits() == want);
  }
  const TestTensor out = call.out();
  const tessera_qsa_compress_keys_args a = call.args(out);
  for (const int part : {2, 0, 1}) {
    c.executor = {TESSERA_EXECUTOR_PART, 0, part, 3, nullptr, nullptr};
    ASSERT_EQ(tessera_qsa_compress_keys(&a, &c), TESSERA_OK);
  }
  EXPECT_TRUE(out.all_bits() == want);
}

// Tokens behind the last whole block may hold anything; a NaN in a block stays there.
TEST_P(QsaCompress, PoisonStaysInItsBlock) {
  Keys call({}, TESSERA_F16);
  const TestTensor clean = call.compress(context());
  for (int64_t d = 0; d < 32; ++d) {
    for (const int64_t token : {36, 37, 38, 39 + 36}) call.raw.set(token * 32 + d, NAN);
  }
  EXPECT_TRUE(call.compress(context()).all_bits() == clean.all_bits());
  call.raw.set(9 * 32 + 5, NAN);
  const TestTensor got = call.compress(context());
  for (int64_t i = 0; i < got.elements(); ++i) {
    if (i / 32 == 2) {
      EXPECT_TRUE(std::isnan(got.get(i))) << i;
    } else {
      EXPECT_EQ(got.bits(i), clean.bits(i)) << i;
    }
  }
}

TEST_P(QsaCompress, TakesBroadcastKeys) {
  Keys call({}, TESSERA_BF16);
  const Shape shape = {2, 39, 32};
  Random random(1);
  for (const size_t axis : {size_t{0}, size_t{1}}) {
    call.raw = TestTensor(TESSERA_BF16, shape, broadcast_strides(shape, axis));
    call.raw.fill_normal(random);
    EXPECT_TRUE(keys_within(call.compress(context()), call));
  }
}

// ---- Errors ----

using CompressArgs = tessera_qsa_compress_keys_args;

void refused(tessera_status status, const std::string& message, const std::function<void(CompressArgs&)>& spoil) {
  SCOPED_TRACE(message);
  Keys call({}, TESSERA_BF16);
  for (const tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
    const TestTensor to = call.out();
    CompressArgs a = call.args(to);
    spoil(a);
    tessera_context context = {};
    context.backend = backend;
    EXPECT_EQ(tessera_qsa_compress_keys(&a, &context), status);
    EXPECT_EQ(std::string(tessera_last_error()).rfind("qsa_compress_keys: " + message, 0), 0u) << tessera_last_error();
    EXPECT_TRUE(to.untouched());
  }
}
void invalid(const std::string& message, const std::function<void(CompressArgs&)>& spoil) {
  refused(TESSERA_INVALID_ARGUMENT, message, spoil);
}

TEST(QsaCompressErrors, Tensors) {
  invalid("raw_keys [B, S, D] is missing", [](CompressArgs& a) { a.raw_keys = {}; });
  invalid("raw_keys has 2 axes; expected [B, S, D]", [](CompressArgs& a) { a.raw_keys.ndim = 2; });
  invalid("raw_keys has stride 2 in its last axis", [](CompressArgs& a) { a.raw_keys.stride[2] = 2; });
  invalid("raw_keys need at least one feature", [](CompressArgs& a) { a.raw_keys.shape[2] = 0; });
  invalid("norm_weight [D] is missing", [](CompressArgs& a) { a.rule.norm_weight = {}; });
  invalid("norm_weight [31] has size 31 in axis 0; expected 32 (D of raw_keys)",
          [](CompressArgs& a) { a.rule.norm_weight.shape[0] = 31; });
  invalid("out [B, S / block_size, D] is missing", [](CompressArgs& a) { a.out = {}; });
  invalid("out [2, 8, 32] has size 8 in axis 1; expected 9 (S / block_size)",
          [](CompressArgs& a) { a.out.shape[1] = 8; });
  invalid("out [1, 9, 32] has size 1 in axis 0; expected 2 (B of raw_keys)",
          [](CompressArgs& a) { a.out.shape[0] = 1; });
  invalid("out has stride 2 in its last axis", [](CompressArgs& a) { a.out.stride[2] = 2; });
  invalid("out overlaps itself", [](CompressArgs& a) { a.out.stride[1] = 16; });
  invalid("out overlaps raw_keys", [](CompressArgs& a) { a.raw_keys.data = a.out.data; });
  invalid("out overlaps norm_weight", [](CompressArgs& a) { a.rule.norm_weight.data = a.out.data; });
  refused(TESSERA_TYPE_ERROR, "raw_keys is int32", [](CompressArgs& a) { a.raw_keys.dtype = TESSERA_I32; });
  refused(TESSERA_TYPE_ERROR, "norm_weight is float16 but raw_keys is bfloat16",
          [](CompressArgs& a) { a.rule.norm_weight.dtype = TESSERA_F16; });
  refused(TESSERA_TYPE_ERROR, "out is float16 but raw_keys is bfloat16",
          [](CompressArgs& a) { a.out.dtype = TESSERA_F16; });
  refused(TESSERA_NOT_IMPLEMENTED, "raw_keys have D 4097; supported is up to 4096", [](CompressArgs& a) {
    a.raw_keys.shape[0] = 0;
    a.raw_keys.shape[2] = 4097;
  });
}

TEST(QsaCompressErrors, Rule) {
  static const double kNan = NAN, kNegative = -1e-6, kZero = 0;
  invalid("block_size is -4; expected at least 1", [](CompressArgs& a) { a.rule.block_size = -4; });
  invalid("rotary_dim is 15; expected an even number from 0 to D, 32", [](CompressArgs& a) { a.rule.rotary_dim = 15; });
  invalid("rotary_dim is 34; expected an even number from 0 to D, 32", [](CompressArgs& a) { a.rule.rotary_dim = 34; });
  invalid("rotary_dim is -2;", [](CompressArgs& a) { a.rule.rotary_dim = -2; });
  invalid("eps is -0.000001; expected a number of at least 0", [](CompressArgs& a) { a.rule.eps = &kNegative; });
  invalid("eps is nan;", [](CompressArgs& a) { a.rule.eps = &kNan; });
  invalid("rope_theta is 0.000000; expected a number above 0", [](CompressArgs& a) { a.rule.rope_theta = &kZero; });
  invalid("rope_theta is nan;", [](CompressArgs& a) { a.rule.rope_theta = &kNan; });
}

TEST(QsaCompressErrors, Rotation) {
  static const TestTensor positions(TESSERA_I32, {2, 39}), cos(TESSERA_F32, {2, 9, 8}), narrow(TESSERA_F32, {2, 9, 7}),
      short_cos(TESSERA_F32, {2, 8, 8}), half(TESSERA_F16, {2, 9, 8}), flat(TESSERA_F32, {2, 9});
  const auto both = [](const TestTensor& t) { return [&t](CompressArgs& a) { a.cos = a.sin = t; }; };
  invalid("positions has 1 axes; expected [B, S]", [](CompressArgs& a) {
    a.positions = positions;
    a.positions.ndim = 1;
  });
  invalid("positions [2, 38] has size 38 in axis 1; expected 39 (S of raw_keys)", [](CompressArgs& a) {
    a.positions = positions;
    a.positions.shape[1] = 38;
  });
  invalid("positions [1, 39] has size 1 in axis 0; expected 2 (B of raw_keys)", [](CompressArgs& a) {
    a.positions = positions;
    a.positions.shape[0] = 1;
  });
  invalid("positions and cos with sin exclude each other", [](CompressArgs& a) {
    a.positions = positions;
    a.cos = a.sin = cos;
  });
  invalid("sin [B, S / block_size, rotary_dim / 2] is missing", [](CompressArgs& a) { a.cos = cos; });
  invalid("cos [B, S / block_size, rotary_dim / 2] is missing", [](CompressArgs& a) { a.sin = cos; });
  invalid("cos [2, 9, 7] has size 7 in axis 2; expected 8 (rotary_dim / 2)", both(narrow));
  invalid("cos [2, 8, 8] has size 8 in axis 1; expected 9 (S / block_size)", both(short_cos));
  invalid("cos has 2 axes", both(flat));
  refused(TESSERA_TYPE_ERROR, "cos is float16; expected float32", both(half));
  refused(TESSERA_TYPE_ERROR, "positions is float32; expected int32", [](CompressArgs& a) {
    a.positions = positions;
    a.positions.dtype = TESSERA_F32;
  });
  invalid("out overlaps cos", [](CompressArgs& a) {
    a.cos = a.sin = cos;
    a.cos.data = a.out.data;
  });
}

TEST(QsaCompressErrors, Calls) {
  EXPECT_EQ(tessera_qsa_compress_keys(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(tessera_last_error()), "qsa_compress_keys: args is null");
  const Keys call({}, TESSERA_F32);
  const TestTensor to = call.out();
  const CompressArgs a = call.args(to);
  tessera_context context = {};
  context.variant = "avx512bf16";
  EXPECT_EQ(tessera_qsa_compress_keys(&a, &context), TESSERA_NOT_IMPLEMENTED);
  EXPECT_TRUE(to.untouched());
}

}  // namespace
}  // namespace tessera::test
