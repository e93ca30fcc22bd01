// The oracle against results that were worked out by hand: what every other test is measured with.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <vector>

#include "by_hand.h"
#include "reference/view.h"

namespace tessera::test {
namespace {

// ---- Numbers and views ---------------------------------------------------------------------------------------------

TEST(ReferenceView, DecodesKnownNumbers) {
  EXPECT_EQ(reference::decode16(0x3f80, 8), 1);
  EXPECT_EQ(reference::decode16(0xc040, 8), -3);
  EXPECT_EQ(reference::decode16(0x0001, 8), std::ldexp(1.0, -133));
  EXPECT_EQ(reference::decode16(0x7f80, 8), kInf);
  EXPECT_TRUE(std::isnan(reference::decode16(0x7fc0, 8)));
  EXPECT_EQ(reference::decode16(0x3c00, 5), 1);
  EXPECT_EQ(reference::decode16(0x7bff, 5), 65504);
  EXPECT_EQ(reference::decode16(0x0001, 5), std::ldexp(1.0, -24));
  EXPECT_EQ(reference::decode16(0xfc00, 5), -kInf);
}

TEST(ReferenceView, EncodesEveryNumberOfBothFormats) {
  for (int exponent_bits : {8, 5}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const double value = reference::decode16(static_cast<uint16_t>(bits), exponent_bits);
      if (std::isnan(value)) continue;
      ASSERT_EQ(reference::encode16(value, exponent_bits), bits);
    }
  }
}

TEST(ReferenceView, RoundsToNearestEven) {
  EXPECT_EQ(reference::encode16(1 + 0x1p-8, 8), 0x3f80);            // a tie, down to even
  EXPECT_EQ(reference::encode16(1 + 3 * 0x1p-8, 8), 0x3f82);        // a tie, up to even
  EXPECT_EQ(reference::encode16(1 + 0x1p-8 + 0x1p-40, 8), 0x3f81);  // just above a tie, by less than an f32 shows
  EXPECT_EQ(reference::encode16(65519.9, 5), 0x7bff);
  EXPECT_EQ(reference::encode16(65520, 5), 0x7c00);
  EXPECT_EQ(reference::encode16(-1e30, 5), 0xfc00);
  EXPECT_EQ(reference::encode16(0x1p-25, 5), 0);
  EXPECT_EQ(reference::encode16(0x1.8p-25, 5), 1);
  EXPECT_TRUE(std::isnan(reference::decode16(reference::encode16(std::nan(""), 5), 5)));
}

TEST(ReferenceView, AppliesStrides) {
  float data[12];
  for (int i = 0; i < 12; ++i) data[i] = static_cast<float>(i);
  tessera_tensor t = {};
  t.data = data + 1;
  t.dtype = TESSERA_F32;
  t.ndim = 3;
  const int64_t shape[] = {2, 2, 2};
  const int64_t stride[] = {1, 5, 0};
  for (int axis = 0; axis < 3; ++axis) t.shape[axis] = shape[axis], t.stride[axis] = stride[axis];
  const reference::View view(t);
  EXPECT_EQ(view.values(), (std::vector<double>{1, 1, 6, 6, 2, 2, 7, 7}));
  EXPECT_EQ(view.row(2, 2), (std::vector<double>{6, 6}));
  view.set(7, 40);
  EXPECT_EQ(data[7], 40);
}

// ---- Attention -----------------------------------------------------------------------------------------------------

// One head; keys 0, log 2, log 4 (...) so that exp(score) is 1, 2, 4, ... for q = 1.
struct Tiny {
  TestTensor q = f32({1, 1, 1, 1}, {1});
  TestTensor k = f32({1, 3, 1, 1}, {0, kLog2, 2 * kLog2});
  TestTensor v = f32({1, 3, 1, 1}, {7, 14, -21});
  TestTensor ids = i32({1, 1, 1}, {0});
  TestTensor q_offset;
  float scale = 1;
  int64_t block = 3;
  int64_t block_q = 0;
  tessera_mask mask = TESSERA_MASK_CAUSAL;

  reference::Attention run() const {
    tessera_block_sparse_gqa_prefill_args a = {};
    a.q = q;
    a.k = k;
    a.v = v;
    a.kv_indices = ids;
    a.block_size = block;
    a.block_q = block_q;
    a.mask = mask;
    a.softmax_scale = &scale;
    a.q_offset = q_offset;
    return reference::attention(a);
  }
};

TEST(ReferenceAttention, WeighsByExponentials) {
  const reference::Attention got = Tiny{}.run();
  expect_near(got.out, {(7.0 + 28 - 84) / 7});
  expect_near(got.spread, {(7.0 + 28 + 84) / 7});
  expect_near(got.lse, {std::log(7.0)});
  expect_near(got.m, {2 * kLog2});
  expect_near(got.l, {7.0 / 4});
  expect_near(got.reach, {2 * kLog2});
}

TEST(ReferenceAttention, AppliesTheScale) {
  Tiny call;
  call.scale = -1;
  expect_near(call.run().out, {(7 + 14 / 2.0 - 21 / 4.0) / 1.75});
  call.scale = 0;
  expect_near(call.run().out, {0});
  expect_near(call.run().lse, {std::log(3.0)});
}

TEST(ReferenceAttention, TakesAListAsASet) {
  Tiny call;
  call.block = 1;
  call.ids = i32({1, 1, 7}, {2, 0, 2, -1, 3, INT_MIN, INT_MAX});
  expect_near(call.run().out, {(7.0 - 84) / 5});
  call.ids = i32({1, 1, 2}, {-1, 3});
  const reference::Attention empty = call.run();
  expect_near(empty.out, {0});
  expect_near(empty.lse, {-kInf});
  expect_near(empty.l, {0});
  expect_near(empty.m, {-kInf});
}

TEST(ReferenceAttention, MasksByPosition) {
  Tiny call;
  call.q = f32({1, 4, 1, 1}, {1, 1, 1, 1});
  call.block_q = 4;
  const double three[] = {7, 35 / 3.0, -7};  // over one, two and three keys
  expect_near(call.run().out, {0, three[0], three[1], three[2]});
  call.q_offset = i32({1}, {-2});
  expect_near(call.run().out, {0, 0, three[0], three[1]});
  call.q_offset = i32({1}, {1});
  expect_near(call.run().out, {three[1], three[2], three[2], three[2]});
  call.q_offset = i32({1}, {INT_MAX});
  expect_near(call.run().out, {three[2], three[2], three[2], three[2]});
  call.q_offset = i32({1}, {INT_MIN});
  expect_near(call.run().lse, {-kInf, -kInf, -kInf, -kInf});
  call.mask = TESSERA_MASK_NONE;
  expect_near(call.run().out, {three[2], three[2], three[2], three[2]});
}

TEST(ReferenceAttention, GivesEachQueryBlockItsList) {
  Tiny call;
  call.q = f32({1, 3, 1, 1}, {1, 1, 1});
  call.block = 1;
  call.block_q = 2;
  call.ids = i32({1, 2, 1}, {0, 2});
  expect_near(call.run().out, {7, 7, -21});
}

TEST(ReferenceAttention, MapsHeadsToKvHeadsAndTheirLists) {
  Tiny call;
  call.q = f32({1, 1, 4, 1}, {1, 1, 1, 1});
  call.k = f32({1, 2, 2, 1}, {0, 0, 0, 0});
  call.v = f32({1, 2, 2, 1}, {1, 10, 2, 20});
  call.block = 1;
  call.ids = i32({1, 2, 1, 1}, {1, 0});
  expect_near(call.run().out, {2, 2, 10, 10});
  call.ids = i32({1, 1, 2}, {0, 1});
  expect_near(call.run().out, {1.5, 1.5, 15, 15});
}

TEST(ReferenceAttention, KeepsRequestsApart) {
  Tiny call;
  call.q = f32({2, 1, 1, 1}, {1, 1});
  call.k = f32({2, 1, 1, 1}, {0, 0});
  call.v = f32({2, 1, 1, 2}, {1, 2, 3, 4});
  call.ids = i32({2, 1, 1}, {0, 0});
  expect_near(call.run().out, {1, 2, 3, 4});
}

TEST(ReferenceAttention, FillsOutputsAndStates) {
  Tiny call;
  TestTensor out(TESSERA_BF16, {1, 1, 1, 1}), lse(TESSERA_F32, {1, 1, 1});
  TestTensor o(TESSERA_F32, {1, 1, 1, 1}), l(TESSERA_F32, {1, 1, 1}), m(TESSERA_F32, {1, 1, 1});
  tessera_block_sparse_gqa_prefill_args a = {};
  a.q = call.q;
  a.k = call.k;
  a.v = call.v;
  a.kv_indices = call.ids;
  a.softmax_scale = &call.scale;
  a.out = out;
  a.lse = lse;
  ASSERT_TRUE(reference_block_sparse_gqa_prefill(a).ok());
  a.out = a.lse = tessera_tensor{};
  a.state_o = o;
  a.state_l = l;
  a.state_m = m;
  ASSERT_TRUE(reference_block_sparse_gqa_prefill(a).ok());
  EXPECT_EQ(out.get(0), -7);
  EXPECT_NEAR(lse.get(0), std::log(7.0), 1e-6);
  EXPECT_NEAR(o.get(0), -7 * 1.75, 1e-5);
  EXPECT_NEAR(l.get(0), 1.75, 1e-6);
  EXPECT_NEAR(m.get(0), 2 * kLog2, 1e-6);
}

// ---- Merges --------------------------------------------------------------------------------------------------------

TEST(ReferenceMerge, WeighsStates) {
  // Two shards of one row: 2 keys of weight 1 with values 1 and 2; one key of weight 4 with value 10.
  const TestTensor o[] = {f32({1, 1}, {3}), f32({1, 1}, {10})};
  const TestTensor l[] = {f32({1}, {2}), f32({1}, {1})};
  const TestTensor m[] = {f32({1}, {0}), f32({1}, {2 * kLog2})};
  const TestTensor out(TESSERA_F32, {1, 1});
  const tessera_tensor os[] = {o[0], o[1]}, ls[] = {l[0], l[1]}, ms[] = {m[0], m[1]};
  tessera_cp_merge_args a = {os, ls, ms, 2, out};
  expect_near(reference::cp_merge(a).out, {43.0 / 6});
  ASSERT_TRUE(reference_cp_merge(a).ok());
  EXPECT_NEAR(out.get(0), 43.0 / 6, 1e-6);
  a.num_states = 1;
  expect_near(reference::cp_merge(a).out, {1.5});
}

TEST(ReferenceMerge, SkipsEmptyShardsWhateverTheyHold) {
  const double nan = std::nan("");
  const TestTensor o[] = {f32({3, 1}, {nan, nan, nan}), f32({3, 1}, {4, 4, kInf})};
  const TestTensor l[] = {f32({3}, {0, 3, 0}), f32({3}, {2, 2, 0})};
  const TestTensor m[] = {f32({3}, {5, -kInf, -kInf}), f32({3}, {1, 1, -kInf})};
  const TestTensor out(TESSERA_F32, {3, 1});
  const tessera_tensor os[] = {o[0], o[1]}, ls[] = {l[0], l[1]}, ms[] = {m[0], m[1]};
  expect_near(reference::cp_merge({os, ls, ms, 2, out}).out, {2, 2, 0});
}

TEST(ReferenceMerge, WeighsPartialsByLse) {
  const TestTensor o[] = {f32({2, 1}, {1, std::nan("")}), f32({2, 1}, {4, 5})};
  const TestTensor lse[] = {f32({2}, {0, -kInf}), f32({2}, {kLog2, 3})};
  const TestTensor out(TESSERA_F32, {2, 1}), merged(TESSERA_F32, {2});
  const tessera_tensor os[] = {o[0], o[1]}, lses[] = {lse[0], lse[1]};
  const tessera_merge_states_args a = {os, lses, 2, out, merged};
  const reference::Merge got = reference::merge_states(a);
  expect_near(got.out, {3, 5});
  expect_near(got.lse, {std::log(3.0), 3});
  ASSERT_TRUE(reference_merge_states(a).ok());
  EXPECT_NEAR(merged.get(0), std::log(3.0), 1e-6);
}

}  // namespace
}  // namespace tessera::test
