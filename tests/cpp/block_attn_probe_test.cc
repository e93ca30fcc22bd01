// Small calls on which other implementations of block-sparse attention have been wrong; each name says what went wrong.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attention.h"

namespace tessera::test {
namespace {

using cases::BlockAttn;

class BlockAttnProbe : public testing::TestWithParam<std::string> {
 protected:
  tessera_context context() const { return with_variant(GetParam().c_str()); }

  void expect_correct(const Attention& call) const {
    const reference::Attention want = call.expected();
    const Output got = call.run(context());
    EXPECT_TRUE(out_within(got.out, call.dtype, want.out, want.spread, want.reach));
    EXPECT_TRUE(log_within("lse", got.lse, call.dtype, want.lse, want.reach));
  }
  static Attention bf16_call(const BlockAttn& c) { return make_attention(c, TESSERA_BF16); }
};
INSTANTIATE_TEST_SUITE_P(BlockAttn, BlockAttnProbe, testing::ValuesIn(variants()),
                         [](const auto& test) { return test.param; });

void set_ids(Attention& call, const std::vector<double>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) call.ids.set(static_cast<int64_t>(i), ids[i]);
}

TEST_P(BlockAttnProbe, ARepeatedIdCountsOnce) {
  Attention call = bf16_call({.queries = 1, .keys = 200, .block_q = 1});
  set_ids(call, {0, 0, -1, -1});
  const Output twice = call.run(context());
  set_ids(call, {0, -1, -1, -1});
  EXPECT_EQ(call.run(context()), twice);
}

TEST_P(BlockAttnProbe, AHoleInAListIsNotItsEnd) {
  Attention call = bf16_call({.queries = 1, .keys = 200, .block_q = 1, .width = 3});
  set_ids(call, {3, -1, 5});
  const Output hole = call.run(context());
  set_ids(call, {3, 5, -1});
  EXPECT_EQ(call.run(context()), hole);
}

TEST_P(BlockAttnProbe, TheIdOnePastTheEndIsNoBlock) {
  for (int64_t keys : {128, 129, 256}) {
    Attention call = bf16_call({.requests = 2, .queries = 3, .keys = keys, .block = 128, .block_q = 3, .width = 2});
    const double blocks = static_cast<double>(call.shape.blocks());
    set_ids(call, {0, blocks, blocks, blocks + 1});
    expect_correct(call);
  }
}

TEST_P(BlockAttnProbe, SlicesOfALargerIndexBuffer) {
  for (int64_t queries : {31, 32, 33}) {
    Attention call = bf16_call({.queries = queries, .keys = 300, .block_q = 1, .width = 5});
    const Output want = call.run(context());
    const TestTensor wide(TESSERA_I32, {1, queries + 3, 11});
    tessera_tensor slice = wide;  // [:, 2:-1, 3:8]
    slice.data = static_cast<int32_t*>(slice.data) + 2 * 11 + 3;
    slice.shape[1] = queries;
    slice.shape[2] = 5;
    const reference::View ids(slice);
    for (int64_t i = 0; i < call.ids.elements(); ++i) ids.set(i, call.ids.get(i));
    const Output got = call.output();
    Args a = call.args_into(got);
    a.kv_indices = slice;
    const tessera_context ctx = context();
    ASSERT_EQ(tessera_block_sparse_gqa_prefill(&a, &ctx), TESSERA_OK) << tessera_last_error();
    EXPECT_EQ(got, want);
  }
}

TEST_P(BlockAttnProbe, OnlyTheLastTokenOfATileSelectsABlock) {
  for (int64_t queries : {32, 33, 63, 64, 65, 128}) {
    Attention call = bf16_call({.queries = queries,
                                .keys = 400,
                                .group = 1,
                                .block_q = 1,
                                .width = 1,
                                .causal = false,
                                .ids = cases::Ids::kInvalid});
    call.ids.set(queries - 1, 7);
    expect_correct(call);
  }
}

TEST_P(BlockAttnProbe, KeysAfterAPositionInTheSameBlockDoNotMatter) {
  const Attention call =
      bf16_call({.queries = 100, .keys = 164, .block = 128, .block_q = 100, .ids = cases::Ids::kAll});
  const Output want = call.run(context());
  Random random(8);
  for (int repeat = 0; repeat < 5; ++repeat) {
    const int64_t t = random.below(99);
    Attention changed = call;
    changed.k = call.k.clone();
    changed.v = call.v.clone();
    for (int64_t i = (call.position(0, t) + 1) * 16; i < changed.k.elements(); ++i) {
      changed.k.set(i, random.normal());
      changed.v.set(i, random.normal());
    }
    const Output got = changed.run(context());
    for (int64_t i = 0; i < (t + 1) * 2 * 16; ++i) ASSERT_EQ(got.out.bits(i), want.out.bits(i)) << t;
    for (int64_t row = (t + 1) * 2; row < 100 * 2; ++row) ASSERT_NE(got.lse.bits(row), want.lse.bits(row)) << t;
  }
}

TEST_P(BlockAttnProbe, LaterQueriesDoNotMatter) {
  const Attention call = bf16_call({.queries = 8, .keys = 72, .block = 64, .block_q = 8, .ids = cases::Ids::kAll});
  const Output want = call.run(context());
  Attention changed = call;
  changed.q = call.q.clone();
  for (int64_t i = 7 * 32; i < 8 * 32; ++i) changed.q.set(i, 1);
  const Output got = changed.run(context());
  for (int64_t i = 0; i < 7 * 32; ++i) ASSERT_EQ(got.out.bits(i), want.out.bits(i));
}

TEST_P(BlockAttnProbe, AbsentKeysHaveNoWeight) {
  // Equal values and very negative logits: a padded key with logit 0 would take all the weight.
  for (int64_t keys : {1, 3, 63, 65, 127, 129}) {
    Attention call =
        bf16_call({.queries = 2, .keys = keys, .block = 128, .block_q = 2, .causal = false, .ids = cases::Ids::kAll});
    call.q.fill(4);
    call.k.fill(-4);
    call.v.fill(1);
    const Output got = call.run(context());
    for (int64_t i = 0; i < got.out.elements(); ++i) ASSERT_EQ(got.out.get(i), 1) << keys;
    for (int64_t i = 0; i < got.lse.elements(); ++i) {
      ASSERT_NEAR(got.lse.get(i), std::log(static_cast<double>(keys)) - 64, 1e-4);
    }
  }
}

TEST_P(BlockAttnProbe, LeadingEmptyRows) {
  Attention call = bf16_call({.queries = 6, .keys = 100, .group = 3, .block_q = 1, .width = 2});
  set_ids(call, {-1, -1, INT_MIN, 99, 0, 1, 2, -1, 6, 0, 3, 3});
  expect_correct(call);
  const Output got = call.run(context());
  for (int64_t i = 0; i < 2 * 3 * 16; ++i) EXPECT_EQ(got.out.bits(i), 0u);
  for (int64_t i = 0; i < 2 * 3; ++i) EXPECT_EQ(got.lse.get(i), -std::numeric_limits<double>::infinity());
  const State state = call.run_state(context());
  for (int64_t i = 0; i < 2 * 3; ++i) {
    EXPECT_EQ(state.l.bits(i), 0u);
    EXPECT_EQ(state.m.get(i), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(state.o.bits(i * 16), 0u);
  }
}

TEST_P(BlockAttnProbe, MoreBlocksThanATableHolds) {
  for (int64_t blocks : {257, 1025}) {
    Attention call = bf16_call({.queries = 2, .keys = blocks * 4, .block = 4, .block_q = 2, .width = 3});
    set_ids(call, {static_cast<double>(blocks - 1), 255, 256});
    expect_correct(call);
  }
}

TEST_P(BlockAttnProbe, AnyHeadCounts) {
  const std::pair<int64_t, int64_t> heads[] = {{4, 16}, {1, 16}, {8, 1}, {3, 4}, {4, 12}};
  for (const auto& [kv_heads, group] : heads) {
    expect_correct(bf16_call({.queries = 9, .keys = 70, .kv_heads = kv_heads, .group = group, .per_head = true}));
  }
}

TEST_P(BlockAttnProbe, ShapesMayChangeFromCallToCall) {
  for (int64_t group : {8, 16, 8, 1}) {
    for (int64_t dim : {128, 64}) {
      expect_correct(bf16_call({.queries = 9, .keys = 270, .group = group, .dim = dim, .dim_v = dim, .block = 128}));
    }
  }
}

TEST_P(BlockAttnProbe, HugeBlocksAndLists) {
  for (int64_t size : {int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
    Attention call = bf16_call({.queries = 9, .keys = 70, .block = 70, .block_q = 9, .ids = cases::Ids::kAll});
    const Output want = call.run(context());
    call.shape.block = call.shape.block_q = size;
    EXPECT_EQ(call.run(context()), want);
  }
}

TEST_P(BlockAttnProbe, ScoresFarFromZeroDoNotOverflow) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 scores";
  // The softmax is the same for any constant added to all scores; only the LSE moves.
  for (double shift : {-3000.0, -300.0, 300.0, 3000.0}) {
    Attention call = make_attention(
        {.queries = 20, .keys = 300, .dim = 8, .block = 32, .block_q = 20, .ids = cases::Ids::kAll, .scale = 1},
        TESSERA_F32);
    for (int64_t i = 0; i < call.q.elements(); i += 8) call.q.set(i, 1);
    for (int64_t i = 0; i < call.k.elements(); i += 8) call.k.set(i, shift);
    expect_correct(call);
  }
}

TEST_P(BlockAttnProbe, RisingAndFallingMaxima) {
  // Each block's scores are 20 above, or below, the block's before: the running maximum moves in every step, or never.
  for (double step : {20.0, -20.0, 6.0}) {
    Attention call = make_attention(
        {.queries = 5, .keys = 320, .dim = 8, .block = 32, .block_q = 5, .ids = cases::Ids::kAll, .scale = 1},
        TESSERA_BF16);
    for (int64_t i = 0; i < call.q.elements(); i += 8) call.q.set(i, 1);
    for (int64_t key = 0; key < 320; ++key) call.k.set(key * 8, step * static_cast<double>(key / 32));
    expect_correct(call);
    const reference::Attention want = call.expected();
    const State state = call.run_state(context());
    EXPECT_TRUE(state_within(state.o, state.l, state.m, call.dtype, want));
  }
}

// K and V whose second request begins 2^31 elements after the first; only the pages in use take memory.
TEST_P(BlockAttnProbe, OffsetsBeyond32Bits) {
  const BlockAttn c = {.requests = 2, .queries = 3, .keys = 40, .block_q = 3, .ids = cases::Ids::kAll};
  const Attention call = bf16_call(c);
  const int64_t stride = (int64_t{1} << 31) + 40;
  const size_t bytes = static_cast<size_t>(2 * stride) * sizeof(uint16_t);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "8 GiB of address space are not to be had";
  tessera_tensor k = call.k, v = call.v;
  k.data = memory;
  v.data = static_cast<uint16_t*>(memory) + 10000;
  k.stride[0] = v.stride[0] = stride;
  for (int64_t i = 0; i < call.k.elements(); ++i) {
    reference::View(k).set(i, call.k.get(i));
    reference::View(v).set(i, call.v.get(i));
  }
  const Output got = call.output();
  Args a = call.args_into(got);
  a.k = k;
  a.v = v;
  const tessera_context ctx = context();
  EXPECT_EQ(tessera_block_sparse_gqa_prefill(&a, &ctx), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(got, call.run(context()));
  munmap(memory, bytes);
}

}  // namespace
}  // namespace tessera::test
