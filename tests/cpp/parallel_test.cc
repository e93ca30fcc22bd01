// Attention by several ranks: the bits of one where each takes some of the rows, the bound where each has some of the keys.
#include "parallel.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "attention_bits.h"

namespace tessera::test {
namespace {

// ---- Query-parallel ----

TEST(QueryParallel, BlockListsHaveTheBitsOfOneRank) {
  for (const BlockAttn& c : kCalls) {
    SCOPED_TRACE(name(c));
    expect_same_bits_by_queries(make_attention(c, TESSERA_BF16));
  }
}

TEST(QueryParallel, ListsPerTokenHaveTheBitsOfOneRank) {
  const MsaCase cases[] = {{.rows = {33, 1, 0, 70}, .keys = {129, 300, 50, 70}, .gap = 3},
                           {.rows = {5, 1, 1}, .keys = {200, 1, 333}, .page = 16, .layout = cases::Layout::kStrided},
                           {.rows = {2}, .keys = {40}, .page = 24, .ids = cases::Ids::kInvalid}};
  for (const MsaCase& c : cases) {
    SCOPED_TRACE(text(c));
    Msa call = make_msa(c, TESSERA_BF16);
    expect_same_bits_by_queries(call);
    call.with_lse = false;
    call.q_offset = TestTensor();
  }
}

// Bounds that decrease leave rows to nobody between two requests.
TEST(QueryParallel, RowsOfNobodyBetweenRequests) {
  Msa call = make_msa({.rows = {4, 2, 2, 2}, .keys = {40, 30, 20, 50}}, TESSERA_F32);
  const double bounds[] = {0, 4, 100, 6, 8};
  for (int64_t i = 0; i < 5; ++i) call.cu_q.set(i, bounds[i]);
  expect_same_bits_by_queries(call);
}

TEST(QueryParallel, TokenListsHaveTheBitsOfOneRank) {
  const TokenCase cases[] = {
      {.requests = 3, .queries = 7, .lists = Lists::kPrefix, .lens_q = true, .layout = cases::Layout::kStrided},
      {.requests = 4,
       .rows = Rows::kPacked,
       .rows_of = {5, 0, 1, 4},
       .form = TokenForm::kPaged,
       .gate = Gate::kFeatures},
      {.requests = 2,
       .rows = Rows::kMapped,
       .form = TokenForm::kPacked,
       .positions = Positions::kScattered,
       .splits = 3},
      {.queries = 6, .rows = Rows::kLone, .form = TokenForm::kPhysical}};
  for (const TokenCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    expect_same_bits_by_queries(TokenAttn(c, TESSERA_BF16));
  }
}

// ---- Context-parallel ----

struct PagedAttention : Attention {
  Paged pages, values;

  explicit PagedAttention(const BlockAttn& c, tessera_dtype type, int64_t page_size)
      : Attention(make_attention(c, type)) {
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < c.requests; ++b) lengths.push_back(c.keys - 13 * b);
    pages = in_pages(k, page_size, lengths, 0);
    values = in_pages(v, page_size, lengths, 0);
  }
  Args whole() const {
    Args a = args();
    a.k = pages.k;
    a.v = values.k;
    a.page_table = pages.page_table;
    a.seqused_k = pages.seqused_k;
    return a;
  }
};

TEST(ContextParallel, BlockListsAreWithinTheBound) {
  const struct {
    BlockAttn shape;
    int64_t page_size;
  } cases[] = {
      {{.requests = 2,
        .queries = 60,
        .keys = 300,
        .kv_heads = 2,
        .group = 3,
        .block = 32,
        .block_q = 7,
        .per_head = true},
       32},
      {{.queries = 130, .keys = 130, .group = 4, .block = 16, .block_q = 16, .width = 3}, 24},
      {{.requests = 2,
        .queries = 1,
        .keys = 3000,
        .kv_heads = 2,
        .group = 4,
        .block = 100,
        .block_q = 1,
        .ids = cases::Ids::kAll},
       20},
      {{.queries = 9, .keys = 90, .block = 33, .block_q = 200, .causal = false, .ids = cases::Ids::kInvalid}, 33},
  };
  for (const auto& c : cases) {
    for (tessera_dtype dtype : kComputedApart) {
      SCOPED_TRACE(name(c.shape) + dtype_name(dtype));
      const PagedAttention call(c.shape, dtype, c.page_size);
      const reference::Attention want = reference::attention(call.whole());
      expect_right_by_context(
          call,
          [&](tessera_ownership ownership, int32_t rank, int32_t size) {
            return shard(call.pages.page_table, call.pages.seqused_k, call.pages.k, call.values.k, c.page_size,
                         ownership, rank, size);
          },
          [&](const Shard& own, const Output& to) {
            Args a = call.args_into(to);
            a.k = own.k;
            a.v = own.v;
            a.page_table = own.table;
            a.seqused_k = call.pages.seqused_k;
            return a;
          },
          [&](const Output& got) {
            EXPECT_TRUE(out_within(got.out, dtype, want.out, want.spread, want.reach));
            EXPECT_TRUE(log_within("lse", got.lse, dtype, want.lse, want.reach));
          });
    }
  }
}

TEST(ContextParallel, ListsPerTokenAreWithinTheBound) {
  const MsaCase cases[] = {{.rows = {33, 1, 0, 20}, .keys = {129, 300, 50, 70}, .page = 16, .gap = 2},
                           {.rows = {1, 1, 1}, .keys = {200, 1, 333}, .block = 32, .page = 8}};
  for (const MsaCase& c : cases) {
    SCOPED_TRACE(text(c));
    const Msa call = make_msa(c, TESSERA_BF16);
    const reference::Attention want = call.expected();
    expect_right_by_context(
        call,
        [&](tessera_ownership ownership, int32_t rank, int32_t size) {
          return shard(call.table, call.used, call.k, call.v, c.page, ownership, rank, size);
        },
        [&](const Shard& own, const Output& to) {
          MsaArgs a = call.args_into(to);
          a.k = own.k;
          a.v = own.v;
          a.sequences.page_table = own.table;
          return a;
        },
        [&](const Output& got) {
          EXPECT_TRUE(out_within(got.out, call.dtype, want.out, want.spread, want.reach));
          EXPECT_TRUE(log_within("lse", got.lse, call.dtype, want.lse, want.reach));
        });
  }
}

TEST(ContextParallel, TokenListsAreWithinTheBound) {
  const TokenCase cases[] = {
      {.requests = 3, .queries = 7, .lists = Lists::kPrefix, .form = TokenForm::kPaged, .lens_q = true},
      {.requests = 4, .rows = Rows::kPacked, .rows_of = {5, 0, 1, 4}, .form = TokenForm::kPaged, .page_size = 4}};
  for (const TokenCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    const TokenAttn call(c, TESSERA_BF16);
    const reference::Attention want = call.expected();
    const auto heads = [&](const TestTensor& t) {
      const tessera_tensor& p = t;
      const int64_t dim = p.shape[3] / c.kv_heads;
      return view_of(p, {p.shape[0], p.shape[2], c.kv_heads, dim}, {p.stride[0], p.stride[2], dim, 1});
    };
    expect_right_by_context(
        call,
        [&](tessera_ownership ownership, int32_t rank, int32_t size) {
          return shard(call.page_table, call.lens_k, call.k, call.v, c.page_size, ownership, rank, size);
        },
        [&](const Shard& own, const Output& to) {
          TokenArgs a = call.args_into(to);
          a.k = heads(own.k);
          a.v = heads(own.v);
          a.page_table = own.table;
          return a;
        },
        [&](const Output& got) { expect_near_oracle(call, got, want); });
  }
}

// Decode: a word before it and one with the partial results, which travel once.
TEST(ContextParallel, FewRowsAreOneExchange) {
  const Msa call = make_msa({.rows = {1, 1}, .keys = {200, 333}, .page = 16}, TESSERA_BF16);
  std::vector<Shard> shards;
  std::vector<Output> outputs;
  for (int32_t rank = 0; rank < 3; ++rank) {
    shards.push_back(shard(call.table, call.used, call.k, call.v, 16, TESSERA_OWN_STRIPED, rank, 3));
    outputs.push_back(call.output());
  }
  ThreadRanks ranks(3);
  ranks.run(TESSERA_CONTEXT_PARALLEL, [&](const tessera_communicator& c) {
    const auto r = static_cast<size_t>(c.rank);
    MsaArgs a = call.args_into(outputs[r]);
    a.k = shards[r].k;
    a.v = shards[r].v;
    a.sequences.page_table = shards[r].table;
    return run_parallel(a, c);
  });
  EXPECT_EQ(ranks.exchanges(), 3);
}

}  // namespace
}  // namespace tessera::test
