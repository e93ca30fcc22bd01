// Block-sparse attention against the oracle, within the accuracy contract.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attention.h"

namespace tessera::test {
namespace {

using cases::BlockAttn;

// Calls that take more oracle time than this are drawn again.
constexpr int64_t kMaxWork = 16'000'000;

// Multiply-adds, with reading a row's features counted as 60 keys.
int64_t work(const BlockAttn& c) {
  const int64_t keys = std::min(c.keys, c.list_width() * c.block) + 60;
  return c.requests * c.queries * c.heads() * keys * (c.dim + c.dim_v);
}

std::vector<BlockAttn> smoke() { return {std::begin(cases::kSmoke), std::end(cases::kSmoke)}; }

// Each axis through its values, the others small.
std::vector<BlockAttn> sweeps() {
  std::vector<BlockAttn> all;
  for (const cases::Lengths& lengths : cases::kLengths) {
    BlockAttn c = {.queries = lengths.queries, .keys = lengths.keys, .block = 64, .block_q = 32, .width = 3};
    all.push_back(c);
    c.causal = false;
    c.ids = cases::Ids::kAll;
    all.push_back(c);
  }
  for (const cases::Dims& dims : cases::kDims) {
    all.push_back({.queries = 21, .keys = 141, .dim = dims.dim, .dim_v = dims.dim_v, .block = 64, .width = 3});
  }
  for (int64_t block : cases::kBlocks) {
    all.push_back({.queries = 50, .keys = 520, .block = block, .block_q = 25, .width = 5, .ids = cases::Ids::kPacked});
  }
  for (int64_t group : cases::kGroups) {
    all.push_back({.queries = 21,
                   .keys = 150,
                   .kv_heads = 2,
                   .group = group,
                   .block = 64,
                   .block_q = 8,
                   .width = 3,
                   .per_head = true});
  }
  for (int64_t block_q : cases::kBlockQs) {
    all.push_back({.queries = 201, .keys = 250, .group = 3, .block = 32, .block_q = block_q, .width = 4});
  }
  for (int64_t width : cases::kWidths) all.push_back({.queries = 70, .keys = 250, .block_q = 10, .width = width});
  for (float scale : {0.0f, -0.3f, 1e-30f, 1.0f, 30.0f, 1e4f}) {
    all.push_back({.queries = 70, .keys = 250, .ids = cases::Ids::kAll, .scale = scale});
  }
  return all;
}

// Any mixture of everything.
std::vector<BlockAttn> mixtures(int count) {
  Random random(1000);
  std::vector<BlockAttn> all;
  while (static_cast<int>(all.size()) < count) {
    BlockAttn c;
    c.requests = 1 + random.below(4);
    c.queries = 1 + random.below(200);
    c.keys = 1 + random.below(600);
    c.kv_heads = 1 + random.below(3);
    c.group = random.pick(cases::kGroups);
    c.dim = random.pick(cases::kDims).dim;
    c.dim_v = random.pick(cases::kDims).dim_v;
    c.block = random.pick(cases::kBlocks);
    c.block_q = random.pick(cases::kBlockQs);
    c.width = random.pick(cases::kWidths);
    c.per_head = random.chance(2);
    c.causal = !random.chance(4);
    c.ids = static_cast<cases::Ids>(random.below(3));
    c.offset = static_cast<cases::Offset>(random.below(2));
    c.layout = static_cast<cases::Layout>(random.below(3));
    if (work(c) <= kMaxWork) all.push_back(c);
  }
  return all;
}

void check(const BlockAttn& c, tessera_dtype dtype, const std::vector<std::string>& names) {
  const Attention call = make_attention(c, dtype);
  const reference::Attention want = call.expected();
  for (const std::string& name : names) {
    if (!takes(name, dtype)) continue;
    SCOPED_TRACE(name + " " + dtype_name(dtype));
    const tessera_context context = with_variant(name.c_str());
    const Output got = call.run(context);
    EXPECT_TRUE(out_within(got.out, dtype, want.out, want.spread, want.reach));
    EXPECT_TRUE(log_within("lse", got.lse, dtype, want.lse, want.reach));
    const State state = call.run_state(context);
    EXPECT_TRUE(state_within(state.o, state.l, state.m, dtype, want));
  }
}

std::string case_name(const testing::TestParamInfo<BlockAttn>& info) {
  return std::to_string(info.index) + "_" + name(info.param);
}

class EveryVariant : public testing::TestWithParam<BlockAttn> {};
TEST_P(EveryVariant, MatchesTheOracle) {
  for (tessera_dtype dtype : kFloats) check(GetParam(), dtype, variants());
}
INSTANTIATE_TEST_SUITE_P(BlockAttn, EveryVariant, testing::ValuesIn(smoke()), case_name);

// The library's own choice of variant, one type after the other.
class BestVariant : public testing::TestWithParam<BlockAttn> {};
TEST_P(BestVariant, MatchesTheOracle) {
  for (tessera_dtype dtype : kFloats) {
    for (const std::string& name : variants()) {
      if (!takes(name, dtype)) continue;
      check(GetParam(), dtype, {name});
      break;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(BlockAttnSweep, BestVariant, testing::ValuesIn(sweeps()), case_name);
INSTANTIATE_TEST_SUITE_P(BlockAttnMixture, BestVariant, testing::ValuesIn(mixtures(100)), case_name);

TEST(BlockAttn, TakesAnyDimOrRefusesItByName) {
  for (const cases::Dims& dims : {cases::Dims{1, 1}, {7, 13}, {65, 63}, {520, 8}, {8, 520}, {1000, 1000}}) {
    const BlockAttn c = {.queries = 9, .keys = 40, .dim = dims.dim, .dim_v = dims.dim_v};
    SCOPED_TRACE(name(c));
    const Attention call = make_attention(c, TESSERA_F32);
    const Output to = call.output();
    const Args a = call.args_into(to);
    const tessera_status status = tessera_block_sparse_gqa_prefill(&a, nullptr);
    if (status == TESSERA_OK) {
      check(c, TESSERA_BF16, variants());
      check(c, TESSERA_F32, variants());
    } else {
      EXPECT_EQ(status, TESSERA_NOT_IMPLEMENTED);
      EXPECT_TRUE(to.out.untouched());
    }
  }
}

TEST(BlockAttn, NeedsNoLse) {
  Attention call = make_attention(cases::kSmoke[2], TESSERA_BF16);
  const Output with = call.run();
  call.with_lse = false;
  EXPECT_EQ(call.run().out.all_bits(), with.out.all_bits());
}

TEST(BlockAttn, ReferenceBackendIsTheOracle) {
  tessera_context context = {};
  context.backend = TESSERA_BACKEND_REFERENCE;
  for (const BlockAttn& c : smoke()) {
    SCOPED_TRACE(name(c));
    if (work(c) > kMaxWork / 10) continue;
    const Attention call = make_attention(c, TESSERA_F16);
    const reference::Attention want = call.expected();
    const Output got = call.run(context);
    for (size_t i = 0; i < want.out.size(); ++i) {
      ASSERT_EQ(got.out.bits(static_cast<int64_t>(i)), reference::encode16(want.out[i], 5)) << "at " << i;
    }
    EXPECT_TRUE(log_within("lse", got.lse, TESSERA_F32, want.lse));
    const State state = call.run_state(context);
    EXPECT_TRUE(state_within(state.o, state.l, state.m, TESSERA_F32, want));
  }
}

TEST(BlockAttn, DefaultsAreTheDocumentedOnes) {
  const BlockAttn c = {.queries = 130, .keys = 300, .block = 128, .block_q = 128, .width = 2};
  const Attention call = make_attention(c, TESSERA_F32);
  const Output want = call.run();
  const Output got = call.output();
  Args a = call.args_into(got);
  a.block_size = 0;
  a.block_q = 0;
  const float scale = 0.25f;  // 1 / sqrt(16)
  a.softmax_scale = &scale;
  ASSERT_EQ(tessera_block_sparse_gqa_prefill(&a, nullptr), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace tessera::test
