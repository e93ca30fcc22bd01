// QSA's attention over pages in the packed layout gives the same bits as over row-major ones, whatever the pages' size, the
// tokens that an entry of the table names, and the lists. What no list names, and what no slot or feature owns, is NaN.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "attention_bits.h"
#include "kv_cache.h"
#include "qsa_attention.h"
#include "refused.h"

namespace tessera::test {
namespace {

constexpr auto kPaged = TokenForm::kPaged;

// `tokens` of one page of the tensors, of which ps / tokens make an entry of the table.
struct Case {
  int64_t tokens;
  TokenCase call;
};

// Pages of one token and of several, smaller than an entry and as large as it; lists that are runs of 4, and others.
std::vector<Case> sizes() {
  std::vector<Case> all;
  for (const auto& [tokens, page] : {std::pair<int64_t, int64_t>{4, 4},
                                     {4, 16},
                                     {4, 64},
                                     {8, 16},
                                     {16, 16},
                                     {2, 6},
                                     {1, 3},
                                     {3, 3},
                                     {5, 20},
                                     {64, 64}}) {
    for (const Lists lists : {Lists::kBlocks, Lists::kMixed, Lists::kScattered, Lists::kPrefix}) {
      const bool odd = (tokens + page) % 3 == 0;
      all.push_back({tokens,
                     {.requests = 3,
                      .queries = 4,
                      .group = lists == Lists::kPrefix ? 12 : 5,
                      .dim = odd ? 17 : 32,
                      .dim_v = lists == Lists::kMixed ? 9
                               : odd                  ? 16
                                                      : 48,
                      .width = 160,
                      .count = 100,
                      .lists = lists,
                      .rows = odd ? Rows::kPacked : Rows::kBatch,
                      .form = kPaged,
                      .page_size = page,
                      .keys_of = {150, 131, 6},
                      .gate = odd ? Gate::kFeatures : Gate::kNone,
                      .layout = odd ? cases::Layout::kStrided : cases::Layout::kDense}});
    }
  }
  return all;
}

// Several chunks of a list, split lists, more heads of a group than go together, prefill of many rows.
const Case kModels[] = {
    {4,
     {.queries = 2,
      .keys = 2600,
      .group = 12,
      .dim = 256,
      .dim_v = 256,
      .width = 2051,
      .lists = Lists::kBlocks,
      .form = kPaged,
      .page_size = 64,
      .gate = Gate::kFeatures}},
    {4,
     {.requests = 2,
      .queries = 1,
      .keys = 1500,
      .kv_heads = 1,
      .group = 50,
      .dim = 16,
      .dim_v = 32,
      .width = 1203,
      .lists = Lists::kBlocks,
      .form = kPaged,
      .page_size = 48,
      .splits = 3}},
    {4,
     {.queries = 90,
      .keys = 140,
      .group = 2,
      .dim = 64,
      .dim_v = 64,
      .width = 143,
      .lists = Lists::kPrefix,
      .form = kPaged,
      .page_size = 16}},
    {128,
     {.queries = 70,
      .keys = 400,
      .group = 3,
      .dim = 32,
      .dim_v = 48,
      .width = 403,
      .lists = Lists::kPrefix,
      .form = kPaged,
      .page_size = 256}},
};

struct PackedPages {
  TestTensor k, v;
  int64_t page_size;

  PackedPages(const TokenAttn& call, int64_t tokens, bool gaps)
      : k(pages_of(call, call.k, call.shape.dim, tokens, false, gaps)),
        v(pages_of(call, call.v, call.shape.dim_v, tokens, true, gaps)),
        page_size(call.shape.form == kPaged ? call.shape.page_size : 0) {}

  TokenArgs in(TokenArgs a) const {
    a.k = k;
    a.v = v;
    a.page_size = page_size;
    return a;
  }

 private:
  static TestTensor pages_of(const TokenAttn& call, const TestTensor& from, int64_t dim, int64_t tokens, bool values,
                             bool gaps) {
    const int64_t heads = call.shape.kv_heads, count = from.elements() / heads / dim / tokens;
    TestTensor rows(call.dtype, {count, heads, tokens, dim});
    for (int64_t i = 0; i < rows.elements(); ++i) {
      const int64_t slot = i / dim % tokens, head = i / dim / tokens % heads, page = i / dim / tokens / heads;
      rows.set(i, from.get(call.head_at(from, page * tokens + slot, head) + i % dim));
    }
    return packed_layout(rows, values, gaps);
  }
};

// Tokens that no list names become NaN.
void poison(TokenAttn* call) {
  const std::set<int64_t> used = call->used();
  const int64_t tokens = call->k.elements() / call->shape.kv_heads / call->shape.dim;
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t head = 0; used.count(token) == 0 && head < call->shape.kv_heads; ++head) {
      call->set_token(token, head, std::nan(""), std::nan(""));
    }
  }
}

// Makes some entries name no page.
void lose_pages(TokenAttn* call) {
  const int64_t invalid[] = {-1, INT_MIN, INT_MAX, call->k.view().shape[0]};
  for (int64_t i = 1; i < call->page_table.elements(); i += 5) {
    call->page_table.set(i, static_cast<double>(invalid[i % 4]));
  }
}

Output run_over(const TokenAttn& call, const PackedPages& pages, const tessera_context& context) {
  const Output to = call.output();
  const TokenArgs a = pages.in(call.args_into(to));
  tessera_context part = context;
  for (int32_t i = 0; i < std::max(context.executor.num_parts, 1); ++i) {
    part.executor.part = i;
    EXPECT_EQ(tessera_qsa_sparse_attention(&a, &part), TESSERA_OK) << tessera_last_error();
  }
  expect_clean(to.out, "out");
  expect_clean(to.lse, "lse");
  return to;
}

class TokenPackedLayout : public testing::TestWithParam<Choice> {
 protected:
  tessera_context context() const { return with_variant(GetParam().variant.c_str()); }

  void expect_same_bits(const Case& c) const {
    SCOPED_TRACE(testing::PrintToString(c.call) + ", pages of " + std::to_string(c.tokens));
    TokenAttn call(c.call, GetParam().dtype);
    poison(&call);
    const PackedPages pages(call, c.tokens, c.call.layout == cases::Layout::kStrided);
    const Output got = run_over(call, pages, context());
    EXPECT_EQ(got, call.run(context()));
    expect_near_oracle(call, got, call.expected());
    lose_pages(&call);
    EXPECT_EQ(run_over(call, pages, context()), call.run(context())) << "with pages that do not exist";
  }
};
INSTANTIATE_TEST_SUITE_P(Qsa, TokenPackedLayout, testing::ValuesIn(choices(kFloats)),
                         [](const auto& test) { return test.param.name(); });

TEST_P(TokenPackedLayout, HasTheBitsOfRowMajorPages) {
  for (const Case& c : sizes()) expect_same_bits(c);
}

TEST_P(TokenPackedLayout, HasTheBitsOfRowMajorPagesAtTheSizesOfModels) {
  for (const Case& c : kModels) expect_same_bits(c);
}

TEST_P(TokenPackedLayout, HasTheSameBitsOnEveryExecutor) {
  for (const Case& c : {kModels[1], kModels[2], sizes()[5]}) {
    SCOPED_TRACE(testing::PrintToString(c.call));
    const TokenAttn call(c.call, GetParam().dtype);
    const PackedPages pages(call, c.tokens, false);
    const Output want = call.run(context());
    tessera_context other = context();
    for (const int32_t n : {1, 3}) {
      other.executor = {TESSERA_EXECUTOR_THREADS, n, 0, 0, nullptr, nullptr};
      EXPECT_EQ(run_over(call, pages, other), want) << n << " threads";
      other.executor = {TESSERA_EXECUTOR_PART, 0, 0, n, nullptr, nullptr};
      EXPECT_EQ(run_over(call, pages, other), want) << n << " parts";
    }
  }
}

// Lists of slots of the pages, without a table.
TEST_P(TokenPackedLayout, SlotsHaveTheBitsOfRowMajorSlots) {
  for (const int64_t tokens : {1, 4, 16}) {
    for (const Lists lists : {Lists::kMixed, Lists::kBlocks}) {
      TokenAttn call({.queries = 3,
                      .keys = 160,
                      .dim = 34,
                      .dim_v = 16,
                      .width = 170,
                      .lists = lists,
                      .rows = Rows::kLone,
                      .form = TokenForm::kPhysical},
                     GetParam().dtype);
      poison(&call);
      EXPECT_EQ(run_over(call, PackedPages(call, tokens, true), context()), call.run(context())) << tokens;
    }
  }
}

// The oracle reads both layouts, and does not see what the row-major one has no place for.
TEST(TokenPackedLayoutOracle, ReadsTheSameNumbers) {
  const std::vector<Case> all = sizes();
  for (const tessera_dtype dtype : kFloats) {
    for (size_t i = 0; i < all.size(); i += 5) {
      const Case& c = all[i];
      SCOPED_TRACE(testing::PrintToString(c.call));
      TokenAttn call(c.call, dtype);
      const PackedPages pages(call, c.tokens, false);
      lose_pages(&call);
      const reference::Attention want = reference::qsa_attention(call.args());
      const reference::Attention got = reference::qsa_attention(pages.in(call.args()));
      EXPECT_TRUE(got.out == want.out && got.lse == want.lse && got.spread == want.spread && got.reach == want.reach);
    }
  }
}

// append_kv writes what attention reads, by the slots of the larger pages.
TEST(TokenPackedLayoutAppended, HasTheBitsOfRowMajorPages) {
  for (const tessera_dtype dtype : kFloats) {
    const Case c = sizes()[4];
    const TokenAttn call(c.call, dtype);
    PackedPages pages(call, c.tokens, false);
    pages.k.clear();
    pages.v.clear();
    const int64_t heads = c.call.kv_heads, tokens = call.k.elements() / heads / c.call.dim;
    std::vector<int64_t> all(static_cast<size_t>(tokens));
    std::iota(all.begin(), all.end(), 0);
    const TestTensor slots = ints(all);
    const auto rows = [&](const TestTensor& t, int64_t dim) {
      return view_of(t, {tokens, heads, dim}, {heads * dim, dim, 1});
    };
    const tessera_append_kv_args a = {rows(call.k, c.call.dim), rows(call.v, c.call.dim_v), slots, pages.k, pages.v};
    ASSERT_EQ(tessera_append_kv(&a, nullptr), TESSERA_OK) << tessera_last_error();
    EXPECT_EQ(run_over(call, pages, {}), call.run());
  }
}

TEST(TokenPackedLayoutErrors, AreNamed) {
  const TokenAttn call({.requests = 2, .rows = Rows::kPacked, .form = kPaged}, TESSERA_BF16);
  const PackedPages pages(call, 4, false);
  const auto invalid = [&](const std::string& argument, const std::string& text, const auto& spoil) {
    const Output to = call.output();
    refused<TokenArgs>("qsa_sparse_attention", tessera_qsa_sparse_attention, pages.in(call.args_into(to)),
                       {to.out, to.lse}, TESSERA_INVALID_ARGUMENT, argument, text, spoil);
  };
  invalid("value", "5 axes, as in the packed layout, and value has 4", [](TokenArgs& a) { a.v.ndim = 4; });
  invalid("key", "no block_table; expected one", [](TokenArgs& a) { a.page_table = {}; });
  invalid("cu_seqlens_k", "is for keys of 3 axes", [](TokenArgs& a) {
    a.page_table = {};
    a.cu_seqlens_k = a.cu_seqlens_q;
  });
  invalid("key", "D of query", [](TokenArgs& a) { --a.k.shape[2]; });
  invalid("key", "the elements in 4 bytes", [](TokenArgs& a) { a.k.shape[4] = 1; });
  invalid("key", "stride 3 in axis 3", [](TokenArgs& a) { a.k.stride[3] = 3; });
  invalid("value", "as key", [](TokenArgs& a) { --a.v.shape[0]; });
  invalid("value", "as key", [](TokenArgs& a) { --a.v.shape[1]; });
  invalid("value", "ps of key", [](TokenArgs& a) { ++a.v.shape[2]; });
  invalid("value", "stride 2 in its last axis", [](TokenArgs& a) { a.v.stride[4] = 2; });
  for (const int64_t size : {-4, 2, 6}) {
    invalid("page_size", "a multiple of 4", [&](TokenArgs& a) { a.page_size = size; });
  }
  const Output to = call.output();
  refused<TokenArgs>("qsa_sparse_attention", tessera_qsa_sparse_attention, call.args_into(to), {to.out, to.lse},
                     TESSERA_INVALID_ARGUMENT, "page_size", "expected 16", [](TokenArgs& a) { a.page_size = 32; });
}

}  // namespace
}  // namespace tessera::test
