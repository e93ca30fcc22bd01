// What must not change a bit of QSA's attention: executors, workspaces, forms of the same rows and keys, other requests,
// other rows, and invalid ids on a list.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attention_bits.h"
#include "qsa_attention.h"

namespace tessera::test {
namespace {

// Calls whose lists have several tiles and chunks, as tasks of their own and not.
const TokenCase kTokenCalls[] = {
    {.requests = 2,
     .keys = 1300,
     .width = 1100,
     .count = 1040,
     .lists = Lists::kScattered,
     .positions = Positions::kLast},
    {.requests = 3,
     .queries = 30,
     .keys = 300,
     .width = 163,
     .lists = Lists::kBlocks,
     .rows = Rows::kPacked,
     .rows_of = {30, 1, 20},
     .form = TokenForm::kPaged,
     .page_size = 24,
     .keys_of = {300, 100, 257},
     .gate = Gate::kFeatures,
     .layout = cases::Layout::kStrided},
    {.requests = 4,
     .queries = 9,
     .rows = Rows::kMapped,
     .form = TokenForm::kPacked,
     .positions = Positions::kScattered},
    {.queries = 1, .keys = 2600, .group = 12, .width = 2051, .lists = Lists::kBlocks, .positions = Positions::kLast},
    {.queries = 2, .keys = 2600, .kv_heads = 3, .width = 2051, .count = 2051, .lists = Lists::kPacked, .splits = 7},
    {.queries = 9, .keys = 800, .width = 700, .rows = Rows::kLone, .form = TokenForm::kPhysical},
    {.requests = 35,
     .queries = 2,
     .keys = 600,
     .kv_heads = 1,
     .width = 600,
     .count = 580,
     .lists = Lists::kPacked,
     .positions = Positions::kLast,
     .gate = Gate::kHeads},
    {.requests = 2,
     .queries = 150,
     .width = 150,
     .lists = Lists::kPrefix,
     .positions = Positions::kLast,
     .gate = Gate::kFeatures},
    {.requests = 3,
     .queries = 40,
     .width = 150,
     .lists = Lists::kPrefix,
     .rows = Rows::kMapped,
     .form = TokenForm::kPaged,
     .page_size = 3},
    {.queries = 1, .keys = 2051, .width = 2051, .lists = Lists::kPrefix, .positions = Positions::kLast},
};

class TokenBits : public testing::TestWithParam<Choice> {
 protected:
  tessera_context context() const { return with_variant(GetParam().variant.c_str()); }
  TokenAttn make(const TokenCase& c) const { return TokenAttn(c, GetParam().dtype); }
};
INSTANTIATE_TEST_SUITE_P(Qsa, TokenBits, testing::ValuesIn(choices()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(TokenBits, AreTheSameForEveryNumberOfThreads) {
  for (const TokenCase& c : kTokenCalls) {
    const TokenAttn call = make(c);
    const Output want = call.run(context());
    for (int n : {1, 2, 3, 7}) {
      tessera_context threads = context();
      threads.executor = {TESSERA_EXECUTOR_THREADS, n, 0, 0, nullptr, nullptr};
      EXPECT_EQ(call.run(threads), want) << n;
    }
  }
}

TEST_P(TokenBits, AreTheSameInParts) {
  for (const TokenCase& c : kTokenCalls) {
    const TokenAttn call = make(c);
    const Output want = call.run(context());
    for (int parts : {1, 2, 5}) {
      const Output to = call.output();
      const TokenArgs args = call.args_into(to);
      tessera_context part = context();
      part.executor = {TESSERA_EXECUTOR_PART, 0, 0, parts, nullptr, nullptr};
      for (part.executor.part = parts - 1; part.executor.part >= 0; --part.executor.part) {
        ASSERT_EQ(tessera_qsa_sparse_attention(&args, &part), TESSERA_OK) << tessera_last_error();
      }
      EXPECT_EQ(to, want) << parts;
    }
  }
}

TEST_P(TokenBits, AreTheSameInTheCallersWorkspace) {
  for (const TokenCase& c : kTokenCalls) {
    const TokenAttn call = make(c);
    const Output want = call.run(context()), to = call.output();
    expect_same_in_workspace(call.args_into(to), to.out, want.out.all_bits(), context(),
                             tessera_qsa_sparse_attention_workspace_size, tessera_qsa_sparse_attention);
    EXPECT_EQ(to.lse.all_bits(), want.lse.all_bits());
  }
}

// ---- Forms ---------------------------------------------------------------------------------------------------------

TEST_P(TokenBits, AreTheSameInEveryForm) {
  for (const auto& [queries, lists] : {std::pair{1, Lists::kScattered}, std::pair{20, Lists::kScattered},
                                       std::pair{1, Lists::kPrefix}, std::pair{20, Lists::kPrefix}}) {
    TokenCase c = {.requests = 2,
                   .queries = queries,
                   .keys = 620,
                   .width = 620,
                   .count = 550,
                   .lists = lists,
                   .keys_of = {620, 590}};
    const Output want = make(c).run(context());
    for (const Rows rows : {Rows::kBatch, Rows::kPacked, Rows::kBoth}) {
      c.rows = rows;
      for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPacked}) {
        c.form = form;
        EXPECT_EQ(make(c).run(context()), want);
      }
      c.form = TokenForm::kPaged;
      for (int64_t page_size : {1, 3, 16, 24, 64, 1000}) {
        c.page_size = page_size;
        EXPECT_EQ(make(c).run(context()), want) << page_size;
      }
    }
  }
}

// The same tokens by slot.
TEST_P(TokenBits, OfSlotsAreThoseOfTokens) {
  const TokenAttn call = make({.requests = 2, .queries = 6, .keys = 700, .width = 800});
  const Output want = call.run(context()), got = call.output();
  const tessera_tensor &q = call.q, &k = call.k, &v = call.v, &out = want.out;
  TestTensor slots(TESSERA_I32, {12, 800});
  for (int64_t i = 0; i < slots.elements(); ++i) {
    const int64_t t = i / 800;
    const auto id = static_cast<int64_t>(call.ids.get(i));
    slots.set(i, id >= 0 && id < 700 && id <= call.position(t) ? static_cast<double>(t / 6 * 700 + id) : -1);
  }
  TokenArgs args = {};
  args.q = view_of(q, {12, q.shape[2], q.shape[3]}, {q.stride[1], q.stride[2], 1});
  args.k = view_of(k, {1400, k.shape[2], k.shape[3]}, {k.stride[1], k.stride[2], 1});
  args.v = view_of(v, {1400, v.shape[2], v.shape[3]}, {v.stride[1], v.stride[2], 1});
  args.selected_kv_indices = slots;
  args.out = view_of(got.out, {12, out.shape[2], out.shape[3]}, {out.stride[1], out.stride[2], 1});
  args.lse = view_of(got.lse, {12, q.shape[2]}, {q.shape[2], 1});
  const tessera_context with = context();
  ASSERT_EQ(tessera_qsa_sparse_attention(&args, &with), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(got, want);
}

// Some rows as calls of their own.
TEST_P(TokenBits, DoNotDependOnOtherRequestsAndRows) {
  for (const TokenCase& c : kTokenCalls) {
    if (c.rows != Rows::kBatch || c.positions != Positions::kLast) continue;
    const TokenAttn call = make(c);
    const Output whole = call.run(context());
    for (int64_t b = 0; b < c.requests; b += 5) {
      for (int64_t t = 0; t < c.queries; t += 2) {
        TokenArgs one = call.args();
        for (tessera_tensor* of : {&one.q, &one.token_indices, &one.query_positions, &one.gate}) {
          if (of->ndim != 0) *of = slice(slice(*of, 0, b, 1), 1, t, 1);
        }
        one.k = slice(one.k, 0, b, 1);
        one.v = slice(one.v, 0, b, 1);
        const int64_t row = b * c.queries + t;
        const Output alone = {TestTensor(GetParam().dtype, {1, 1, c.heads(), c.dim_v}),
                              TestTensor(TESSERA_F32, {1, 1, c.heads()})};
        one.out = alone.out;
        one.lse = alone.lse;
        const tessera_context with = context();
        ASSERT_EQ(tessera_qsa_sparse_attention(&one, &with), TESSERA_OK) << tessera_last_error();
        for (int64_t i = 0; i < alone.lse.elements(); ++i) {
          ASSERT_EQ(alone.lse.bits(i), whole.lse.bits(row * c.heads() + i)) << row;
        }
        for (int64_t i = 0; i < alone.out.elements(); ++i) {
          ASSERT_EQ(alone.out.bits(i), whole.out.bits(row * c.heads() * c.dim_v + i)) << row;
        }
      }
    }
  }
}

// ---- Lists ---------------------------------------------------------------------------------------------------------

// The same ids, with `before` invalid ones in front of every `each` of them and `after` at the end.
TestTensor padded(const TokenAttn& call, int64_t before, int64_t each, int64_t after) {
  const int64_t width = call.shape.width, wide = width + (width + each - 1) / each * before + after;
  Shape of(call.ids.view().shape, call.ids.view().shape + call.ids.view().ndim);
  of.back() = wide;
  TestTensor ids(TESSERA_I32, of);
  ids.fill(-1);
  for (int64_t i = 0; i < call.ids.elements(); ++i) {
    const int64_t w = i % width;
    ids.set(i / width * wide + w + (w / each + 1) * before, call.ids.get(i));
  }
  return ids;
}

TEST_P(TokenBits, DoNotDependOnInvalidIds) {
  for (const TokenCase& c : kTokenCalls) {
    const TokenAttn call = make(c);
    const Output want = call.run(context());
    const int64_t pads[][3] = {{0, 1, 1}, {0, 1, 700}, {1, 1, 0}, {600, 50, 3}};
    for (const auto& [before, each, after] : pads) {
      TokenAttn wide = call;
      wide.ids = padded(call, before, each, after);
      EXPECT_EQ(wide.run(context()), want) << before << " before " << each << ", " << after << " after";
    }
  }
}

// More parts than tokens are as many parts as there are tokens.
TEST_P(TokenBits, DoNotDependOnEmptyParts) {
  TokenCase c = {.queries = 2, .keys = 60, .width = 40, .count = 31, .lists = Lists::kPacked, .splits = 31};
  const Output want = make(c).run(context());
  for (int64_t splits : {32, 64, 1000000}) {
    c.splits = splits;
    EXPECT_EQ(make(c).run(context()), want) << splits;
  }
}

// ---- The gate ------------------------------------------------------------------------------------------------------

// Attention to one token of score 0 is that token: gating it gates what has been rounded.
TEST_P(TokenBits, OfTheGateAreThoseOfGatingAfterwards) {
  for (const Gate gate : {Gate::kFeatures, Gate::kHeads}) {
    for (const bool f32 : {false, true}) {
      TokenCase c = {.queries = 12, .keys = 700, .width = 600, .gate = gate, .gate_f32 = f32};
      TokenAttn call = make(c);
      const double extreme[] = {0, -0.0, 90, -90, 1e4, -1e4, INFINITY, -INFINITY};
      for (int64_t i = 0; i < 8; ++i) call.gate.set(i, extreme[i]);
      const Output gated = call.run(context());
      TokenArgs args = call.args_into(gated);
      args.gate = {};
      const Output plain = call.output(), after = call.output();
      args.out = plain.out;
      args.lse = plain.lse;
      const tessera_context with = context();
      ASSERT_EQ(tessera_qsa_sparse_attention(&args, &with), TESSERA_OK) << tessera_last_error();
      EXPECT_EQ(gated.lse.all_bits(), plain.lse.all_bits());
      TestTensor k(GetParam().dtype, {1, 12, c.heads(), c.dim}), own(TESSERA_I32, {1, 12, 1});
      k.fill(0);
      for (int64_t t = 0; t < 12; ++t) own.set(t, static_cast<double>(t));
      args.k = k;
      args.v = plain.out;
      args.token_indices = own;
      args.gate = call.gate;
      args.out = after.out;
      ASSERT_EQ(tessera_qsa_sparse_attention(&args, &with), TESSERA_OK) << tessera_last_error();
      EXPECT_EQ(after.out.all_bits(), gated.out.all_bits());
      for (int64_t i = 0; i < plain.out.elements(); ++i) {
        const double want = plain.out.get(i) * sigmoid(call.gate.get(gate == Gate::kHeads ? i / c.dim_v : i));
        const double room = GetParam().dtype == TESSERA_F32 ? 8 : 1.01;
        EXPECT_NEAR(gated.out.get(i), want, room * half_ulp(want, GetParam().dtype) + 1e-36) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
