// QSA's attention against the oracle: every form of rows and keys, sizes around tiles and chunks, and every option.
#include "qsa_attention.h"

#include <gtest/gtest.h>

#include <vector>

#include "by_hand.h"

namespace tessera::test {
namespace {

constexpr auto kStrided = cases::Layout::kStrided;
constexpr auto kBroadcast = cases::Layout::kBroadcast;

// Every form of the rows over every form of the keys, for requests of unlike lengths.
std::vector<TokenCase> forms() {
  std::vector<TokenCase> all;
  for (const Rows rows : {Rows::kBatch, Rows::kPacked, Rows::kMapped, Rows::kBoth}) {
    for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPacked, TokenForm::kPaged}) {
      for (const Positions positions : {Positions::kInferred, Positions::kLast, Positions::kScattered}) {
        all.push_back({.requests = 5,
                       .queries = 7,
                       .rows = rows,
                       .rows_of = {7, 0, 1, 3, 5},
                       .form = form,
                       .page_size = positions == Positions::kLast ? 3 : 16,
                       .keys_of = {150, 90, 0, 3, 33},
                       .positions = positions,
                       .lens_q = positions == Positions::kScattered,
                       .gate = positions == Positions::kLast ? Gate::kFeatures : Gate::kNone,
                       .layout = positions == Positions::kInferred ? kStrided : cases::Layout::kDense});
      }
      all.push_back({.requests = 5, .queries = 4, .rows = rows, .form = form, .lens_q = true});
    }
  }
  return all;
}

std::vector<TokenCase> geometries() {
  std::vector<TokenCase> all = {
      {},
      {.requests = 3, .layout = kStrided},
      {.requests = 3, .layout = kBroadcast},
      {.requests = 3, .rows = Rows::kPacked, .form = TokenForm::kPacked, .layout = kBroadcast},
      {.requests = 0},
      {.queries = 0},
      {.queries = 0, .rows = Rows::kLone},
      {.keys = 0},
      {.keys = 0, .form = TokenForm::kPaged},
      {.requests = 3, .keys = 2, .keys_of = {0, 0, 0}},  // more rows than keys
      {.keys = 3},
      {.scale = 0.01f},
      {.scale = 0.0f},
      {.scale = -0.5f},
      {.queries = 30, .keys = 31, .lists = Lists::kBlocks},
      {.queries = 40, .keys = 900, .width = 227, .lists = Lists::kBlocks, .form = TokenForm::kPaged, .page_size = 24},
      {.queries = 9, .rows = Rows::kLone, .form = TokenForm::kPhysical},
      {.queries = 9, .rows = Rows::kLone, .form = TokenForm::kPhysical, .layout = kStrided},
      {.queries = 9, .rows = Rows::kLone, .form = TokenForm::kPhysical, .layout = kBroadcast},
      {.queries = 200, .keys = 300, .kv_heads = 1, .group = 2, .width = 30},  // many tasks
  };
  for (int64_t group : {1, 3, 5, 12, 16, 48, 49, 64, 97}) {
    all.push_back({.queries = 2, .keys = 300, .group = group, .width = 260, .lists = Lists::kScattered});
  }
  for (int64_t heads : {1, 3, 8}) all.push_back({.queries = 3, .kv_heads = heads, .group = 1});
  const int64_t dims[][2] = {{8, 24},   {24, 8},   {64, 80},   {80, 64},   {96, 128},  {128, 96},
                             {256, 64}, {64, 256}, {256, 256}, {512, 256}, {256, 512}, {1, 1},
                             {5, 3},    {17, 31},  {31, 33},   {130, 1},   {1, 130}};
  for (const auto& [dim, dim_v] : dims) {
    all.push_back({.queries = 2, .keys = 200, .dim = dim, .dim_v = dim_v, .width = 150, .lists = Lists::kScattered});
  }
  for (int64_t page_size : {1, 3, 16, 24, 64, 784}) {
    for (const Lists lists : {Lists::kMixed, Lists::kBlocks}) {
      all.push_back({.requests = 3,
                     .queries = 3,
                     .keys = 300,
                     .width = 103,
                     .lists = lists,
                     .form = TokenForm::kPaged,
                     .page_size = page_size,
                     .keys_of = {300, 257, 31}});
    }
  }
  return all;
}

// Lists of so many tokens that count, packed or with invalid ids in between, as they are and in parts.
std::vector<TokenCase> counts() {
  std::vector<TokenCase> all;
  for (int64_t count : {0, 1, 3, 127, 128, 129, 511, 512, 513, 1025, 2051}) {
    for (int64_t splits : {0, 1, 2, 7, 64}) {
      all.push_back({.queries = 2,
                     .keys = 2100,
                     .group = 2,
                     .dim = 8,
                     .dim_v = 24,
                     .width = count + (splits == 0 ? 0 : count / 3 + 1),
                     .count = count,
                     .lists = splits % 2 == 0 ? Lists::kScattered : Lists::kPacked,
                     .splits = splits});
    }
    all.push_back({.requests = 35,  // too many rows to split
                   .queries = 2,
                   .keys = count + 1,
                   .kv_heads = 1,
                   .group = 1,
                   .dim = 8,
                   .dim_v = 8,
                   .width = count,
                   .count = count,
                   .lists = Lists::kPacked});
  }
  return all;
}

std::vector<TokenCase> gates() {
  std::vector<TokenCase> all;
  for (const Gate gate : {Gate::kFeatures, Gate::kHeads}) {
    for (const bool f32 : {false, true}) {
      for (const auto layout : {cases::Layout::kDense, kStrided, kBroadcast}) {
        for (const Rows rows : {Rows::kBatch, Rows::kPacked}) {
          all.push_back({.requests = 2,
                         .dim_v = 21,
                         .rows = rows,
                         .lens_q = true,
                         .gate = gate,
                         .gate_f32 = f32,
                         .splits = rows == Rows::kBatch ? 0 : 2,
                         .layout = layout});
        }
      }
    }
  }
  return all;
}

// Rows that list all they see, beside others: in runs, of several requests in turn, and too long for one chunk.
std::vector<TokenCase> prefixes() {
  std::vector<TokenCase> all;
  for (const Rows rows : {Rows::kBatch, Rows::kPacked, Rows::kMapped, Rows::kBoth}) {
    for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPacked, TokenForm::kPaged}) {
      for (const Positions positions : {Positions::kLast, Positions::kScattered}) {
        all.push_back({.requests = 4,
                       .queries = 31,
                       .width = 150,
                       .lists = Lists::kPrefix,
                       .rows = rows,
                       .rows_of = {31, 0, 9, 25},
                       .form = form,
                       .page_size = 24,
                       .keys_of = {150, 90, 5, 129},
                       .positions = positions,
                       .lens_q = positions == Positions::kLast,
                       .gate = positions == Positions::kLast ? Gate::kHeads : Gate::kFeatures,
                       .layout = positions == Positions::kLast ? kStrided : cases::Layout::kDense});
      }
    }
  }
  for (int64_t n : {1, 2, 127, 128, 129, 260}) {
    all.push_back({.requests = 2, .queries = n, .keys = n, .group = 5, .width = n, .lists = Lists::kPrefix});
  }
  all.push_back({.queries = 3, .keys = 2051, .dim = 8, .width = 2051, .lists = Lists::kPrefix});
  all.push_back({.queries = 3, .keys = 200, .width = 200, .lists = Lists::kPrefix, .splits = 2});
  return all;
}

class TokenGeometry : public testing::TestWithParam<TokenCase> {};
INSTANTIATE_TEST_SUITE_P(Forms, TokenGeometry, testing::ValuesIn(forms()));
INSTANTIATE_TEST_SUITE_P(Geometries, TokenGeometry, testing::ValuesIn(geometries()));
INSTANTIATE_TEST_SUITE_P(Counts, TokenGeometry, testing::ValuesIn(counts()));
INSTANTIATE_TEST_SUITE_P(Prefixes, TokenGeometry, testing::ValuesIn(prefixes()));
INSTANTIATE_TEST_SUITE_P(Gates, TokenGeometry, testing::ValuesIn(gates()));

TEST_P(TokenGeometry, MatchesTheOracle) {
  for (tessera_dtype dtype : kFloats) expect_right(TokenAttn(GetParam(), dtype));
}

// The layer that QSA was made for: 24 heads over 2, 512 blocks of four and a tail.
TEST(TokenAttn, TakesTheCanonicalShape) {
  for (const int64_t queries : {1, 3}) {
    expect_right(TokenAttn({.queries = queries,
                            .keys = 2600,
                            .group = 12,
                            .dim = 256,
                            .dim_v = 256,
                            .width = 2051,
                            .lists = Lists::kBlocks,
                            .form = TokenForm::kPaged,
                            .page_size = 64,
                            .gate = Gate::kFeatures},
                           TESSERA_BF16));
  }
}

TEST(TokenAttn, LseIsOptional) {
  for (int64_t splits : {0, 2}) {
    TokenAttn call({.requests = 2, .splits = splits, .layout = kStrided}, TESSERA_BF16);
    const Output want = call.run();
    call.with_lse = false;
    EXPECT_EQ(call.run().out.all_bits(), want.out.all_bits());
  }
}

// Of one value of 1 the gate is the result.
TEST(TokenAttn, SigmoidIsAsAccurateFarFromZero) {
  TokenAttn call(
      {.queries = 1, .keys = 1, .kv_heads = 1, .group = 1, .dim_v = 1751, .width = 1, .gate = Gate::kFeatures},
      TESSERA_F32);
  call.ids.fill(0);
  call.v.fill(1);
  for (int64_t i = 0; i < 1751; ++i) call.gate.set(i, 0.1 * static_cast<double>(i) - 87.3);
  for_each_variant(TESSERA_F32, [&](const tessera_context& with) {
    const Output got = call.run(with);
    for (int64_t i = 0; i < 1751; ++i) {
      const double want = sigmoid(call.gate.get(i));
      EXPECT_NEAR(got.out.get(i), want, 5e-7 * want) << call.gate.get(i);
    }
  });
}

// A list that is written to while the call runs gives any result, but the call ends.
TEST(TokenAttn, ListsThatChangeMeanwhileEndTheCall) {
  for (int64_t splits : {0, 3}) {
    TokenAttn call({.queries = 30, .keys = 700, .width = 600, .splits = splits}, TESSERA_BF16);
    tessera_context context = {};
    context.executor = {TESSERA_EXECUTOR_PARALLEL_FOR, 2, 0, 0, nullptr, &call.ids};
    context.executor.parallel_for = [](void* ids, int32_t n, void (*body)(void*, int32_t), void* arg) {
      static_cast<TestTensor*>(ids)->fill(-1);
      for (int32_t i = 0; i < n; ++i) body(arg, i);
    };
    const Output to = call.output();
    const TokenArgs a = call.args_into(to);
    EXPECT_EQ(tessera_qsa_sparse_attention(&a, &context), TESSERA_OK) << tessera_last_error();
    EXPECT_TRUE(to.out.gaps_untouched());
    EXPECT_EQ(call.ids.get(0), -1) << "the host's threads were not asked";
  }
}

// Without seq_lens_k whole pages count.
TEST(TokenAttn, LengthsAreOptional) {
  TokenAttn call({.requests = 2, .keys = 48, .form = TokenForm::kPaged}, TESSERA_BF16);
  call.lens_k = {};
  expect_right(call);
}

// What qsa_select lists where its budget covers the context is every token up to the row's own.
TEST(TokenAttn, OfAllTokensIsDenseAttention) {
  const int64_t n = 90;
  TokenAttn call({.queries = n, .keys = n, .width = n + 3}, TESSERA_BF16);
  const TestTensor q(TESSERA_F32, {1, n, 1, 8}), k(TESSERA_F32, {1, n / 4, 8});
  q.values().set_values(std::vector<double>(n * 8, 1));
  k.values().set_values(std::vector<double>(n / 4 * 8, 1));
  tessera_qsa_select_args select = {};
  select.index.q = q;
  select.index.k = k;
  select.topk = n / 4 + 1;
  call.ids = TestTensor(TESSERA_I32, {1, n, select.topk * 4 + 3});
  select.token_indices = call.ids;
  ASSERT_EQ(tessera_qsa_select(&select, nullptr), TESSERA_OK) << tessera_last_error();
  const TestTensor blocks = ints({0});
  tessera_block_sparse_gqa_prefill_args dense = {};
  dense.q = call.q;
  dense.k = call.k;
  dense.v = call.v;
  dense.kv_indices = view_of(blocks, {1, 1, 1}, {1, 1, 1});
  dense.block_size = n;
  const reference::Attention want = reference::attention(dense);
  for_each_variant(TESSERA_BF16, [&](const tessera_context& with) { expect_near_oracle(call, call.run(with), want); });
}

TEST(TokenAttn, ReferenceBackendIsTheOracle) {
  tessera_context context = {};
  context.backend = TESSERA_BACKEND_REFERENCE;
  for (const TokenCase& c : gates()) {
    const TokenAttn call(c, TESSERA_F16);
    expect_near_oracle(call, call.run(context), call.expected());
  }
}

}  // namespace
}  // namespace tessera::test
