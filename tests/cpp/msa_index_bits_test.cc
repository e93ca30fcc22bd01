// What must not change a bit of scores and lists: executors, workspaces, forms of the same keys, other requests, other
// rows, and whatever lies where no row looks.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attention_bits.h"
#include "msa_index.h"

namespace tessera::test {
namespace {

// Calls with several tiles, groups of heads, requests and key tiles; the last is cut along the keys.
const IndexCase kCalls[] = {
    {.requests = 3, .queries = 150, .keys = 400, .block = 24, .topk = 5},
    {.requests = 2, .queries = 100, .keys = 300, .heads = 2, .key_heads = 2, .layout = cases::Layout::kStrided},
    {.requests = 3,
     .queries = 60,
     .keys = 260,
     .key_heads = 4,
     .block = 200,
     .reduce = true,
     .packed_q = true,
     .keys_form = Form::kPaged,
     .rows_of = {60, 1, 30},
     .keys_of = {260, 100, 257},
     .topk = 1},
    {.requests = 4, .queries = 40, .keys = 200, .heads = 5, .block = 1, .offset = cases::Offset::kPerRequest},
    {.requests = 2, .queries = 2, .keys = 20000, .heads = 2, .dim = 8, .block = 100, .keys_form = Form::kPaged},
    {.requests = 2,
     .queries = 110,
     .keys = 300,
     .key_heads = 4,
     .block = 64,
     .keys_form = Form::kPackedLayout,
     .page_size = 128,
     .topk = 2},
};

class IndexBits : public testing::TestWithParam<Choice> {
 protected:
  tessera_context context() const { return with_variant(GetParam().variant.c_str()); }
  Index make(const IndexCase& c) const { return Index(c, GetParam().dtype); }
  static std::pair<Bits, Bits> run(const Index& call, const tessera_context& with) {
    return {call.scores(with).all_bits(), call.select(with).all_bits()};
  }
};
INSTANTIATE_TEST_SUITE_P(MsaIndex, IndexBits, testing::ValuesIn(choices()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(IndexBits, AreTheSameForEveryNumberOfThreads) {
  for (const IndexCase& c : kCalls) {
    const Index call = make(c);
    const auto want = run(call, context());
    for (int n : {1, 2, 3, 7}) {
      tessera_context threads = context();
      threads.executor.kind = TESSERA_EXECUTOR_THREADS;
      threads.executor.num_threads = n;
      EXPECT_EQ(run(call, threads), want) << n;
    }
  }
}

TEST_P(IndexBits, AreTheSameInParts) {
  for (const IndexCase& c : kCalls) {
    const Index call = make(c);
    const auto want = run(call, context());
    for (int parts : {1, 2, 5}) {
      const TestTensor scores = call.scores_tensor();
      const TestTensor ids = call.indices_tensor();
      const auto scores_args = call.scores_args(scores);
      const auto select_args = call.select_args(ids);
      tessera_context part = context();
      part.executor.kind = TESSERA_EXECUTOR_PART;
      part.executor.num_parts = parts;
      for (part.executor.part = parts - 1; part.executor.part >= 0; --part.executor.part) {
        ASSERT_EQ(tessera_msa_block_scores(&scores_args, &part), TESSERA_OK) << tessera_last_error();
        ASSERT_EQ(tessera_msa_select(&select_args, &part), TESSERA_OK) << tessera_last_error();
      }
      expect_clean(scores, "scores");
      expect_clean(ids, "indices");
      EXPECT_EQ(std::make_pair(scores.all_bits(), ids.all_bits()), want) << parts;
    }
  }
}

TEST_P(IndexBits, AreTheSameInTheCallersWorkspace) {
  for (const IndexCase& c : kCalls) {
    const Index call = make(c);
    const auto want = run(call, context());
    const TestTensor scores = call.scores_tensor();
    expect_same_in_workspace(call.scores_args(scores), scores, want.first, context(),
                             tessera_msa_block_scores_workspace_size, tessera_msa_block_scores);
    const TestTensor ids = call.indices_tensor();
    expect_same_in_workspace(call.select_args(ids), ids, want.second, context(), tessera_msa_select_workspace_size,
                             tessera_msa_select);
  }
}

TEST_P(IndexBits, AreTheSameInEveryForm) {
  for (int64_t key_heads : {1, 4}) {
    for (int64_t block : {1, 8, 24, 128, 200}) {
      IndexCase c = {.requests = 2, .queries = 50, .keys = 410, .key_heads = key_heads, .block = block, .topk = 2};
      const auto want = run(make(c), context());
      c.keys_form = Form::kPacked;
      EXPECT_EQ(run(make(c), context()), want);
      for (const Form form : {Form::kPaged, Form::kPackedLayout}) {
        c.keys_form = form;
        for (int64_t page_size : {1, 3, 16, 24, 64, 128, 256}) {
          c.page_size = page_size;
          EXPECT_EQ(run(make(c), context()), want) << page_size;
        }
      }
    }
  }
}

// Groups of rows beside each other and rows alone; pages that are panels already, with features to the last unit or not.
TEST_P(IndexBits, AreTheSameInPackedPages) {
  for (int64_t queries : {1, 70}) {
    for (int64_t heads : {1, 3, 5, 16, 48}) {
      for (int64_t page_size : {3, 64, 128, 256}) {
        for (int64_t dim : {33, 64}) {
          IndexCase c = {.requests = 2,
                         .queries = queries,
                         .keys = 301,
                         .heads = heads,
                         .dim = dim,
                         .block = 64,
                         .keys_form = Form::kPaged,
                         .page_size = page_size,
                         .keys_of = {301, 130},
                         .layout = heads == 3 ? cases::Layout::kStrided : cases::Layout::kDense,
                         .topk = 2};
          const Index rows = make(c);
          c.keys_form = Form::kPackedLayout;
          const Index packed = make(c);
          EXPECT_EQ(run(packed, context()), run(rows, context())) << page_size;
          Index lost_rows = rows, lost_packed = packed;
          lost_rows.page_table = lost_packed.page_table = rows.page_table.clone();
          lost_rows.page_table.set(0, -1);
          EXPECT_EQ(run(lost_packed, context()), run(lost_rows, context())) << "with a page that does not exist";
        }
      }
    }
  }
}

// Each request, and some of the rows of each request, as calls of their own.
TEST_P(IndexBits, DoNotDependOnOtherRequestsAndRows) {
  for (const IndexCase& c : kCalls) {
    if (c.packed_q || c.keys_form == Form::kPacked) continue;
    const Index call = make(c);
    const TestTensor whole = call.scores(context());
    const TestTensor whole_ids = call.select(context());
    for (int64_t b = 0; b < c.requests; ++b) {
      const int64_t offset =
          call.q_offset.view().ndim != 0 ? static_cast<int64_t>(call.q_offset.get(b)) : c.keys - c.queries;
      for (int64_t t = 0; t < c.queries; t += 7) {
        TestTensor position(TESSERA_I32, {1});
        position.set(0, static_cast<double>(offset + t));
        tessera_msa_index one = call.index();
        const auto cut = [&](tessera_tensor& tensor, int axis, int64_t first) {
          const int64_t size = tensor.dtype == TESSERA_BF16 ? 2 : 4;
          tensor.data = static_cast<char*>(tensor.data) + first * tensor.stride[axis] * size;
          tensor.shape[axis] = 1;
        };
        cut(one.q, 0, b);
        cut(one.q, 1, t);
        if (c.keys_form == Form::kBatch) cut(one.k, 0, b);
        if (c.keys_form != Form::kBatch) {
          cut(one.sequences.page_table, 0, b);
          cut(one.sequences.seqused_k, 0, b);
        }
        one.sequences.q_offset = position;
        const TestTensor scores(TESSERA_F32, {1, c.heads, 1, c.blocks()});
        const TestTensor ids(TESSERA_I32, {1, c.heads, 1, c.topk});
        const tessera_msa_block_scores_args scores_args = {one, scores};
        const tessera_msa_select_args select_args = {one, c.topk, c.local, c.init, ids};
        const tessera_context with = context();
        ASSERT_EQ(tessera_msa_block_scores(&scores_args, &with), TESSERA_OK) << tessera_last_error();
        ASSERT_EQ(tessera_msa_select(&select_args, &with), TESSERA_OK) << tessera_last_error();
        for (int64_t h = 0; h < c.heads; ++h) {
          const int64_t list = (b * c.heads + h) * c.queries + t;
          for (int64_t n = 0; n < c.blocks(); ++n) {
            ASSERT_EQ(scores.bits(h * c.blocks() + n), whole.bits(list * c.blocks() + n));
          }
          for (int64_t i = 0; i < c.topk; ++i) ASSERT_EQ(ids.get(h * c.topk + i), whole_ids.get(list * c.topk + i));
        }
      }
    }
  }
}

// ---- Poison --------------------------------------------------------------------------------------------------------

// Positions 60 to 99 of 150 keys: what lies behind key 99 is seen by nobody.
TEST_P(IndexBits, InvisibleKeysChangeNothing) {
  for (int64_t block : {1, 8, 24, 128, 200}) {
    Index clean = make({.heads = 3, .block = block, .topk = 2});
    clean.q_offset = TestTensor(TESSERA_I32, {1});
    clean.q_offset.set(0, 60);
    const auto want = run(clean, context());
    for (double poison : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      Index dirty = clean;
      dirty.k = clean.k.clone();
      for (int64_t i = 100 * clean.shape.dim; i < dirty.k.elements(); ++i) dirty.k.set(i, poison);
      EXPECT_EQ(run(dirty, context()), want);
    }
  }
}

TEST_P(IndexBits, SlotsWithoutKeysChangeNothing) {
  const IndexCase c = {
      .requests = 3, .keys = 300, .block = 24, .keys_form = Form::kPaged, .page_size = 128, .keys_of = {129, 0, 290}};
  const auto want = run(Index(c, GetParam().dtype, 0.0), context());
  EXPECT_EQ(run(Index(c, GetParam().dtype, std::nan("")), context()), want);
  EXPECT_EQ(run(Index(c, GetParam().dtype, std::numeric_limits<double>::infinity()), context()), want);
}

// A NaN in a key or in a row of q reaches the scores that it belongs to and no other.
TEST_P(IndexBits, NanStaysWithItsRow) {
  for (bool reduce : {false, true}) {
    Index clean = make({.queries = 60, .keys = 300, .heads = 3, .block = 24, .reduce = reduce});
    const TestTensor want = clean.scores(context());
    const int64_t blocks = clean.shape.blocks();
    Index dirty = clean;
    dirty.k = clean.k.clone();
    dirty.k.set(280 * clean.shape.dim + 5, std::nan(""));
    dirty.q = clean.q.clone();
    dirty.q.set((7 * 3 + 1) * clean.shape.dim, std::nan(""));
    const TestTensor got = dirty.scores(context());
    for (int64_t i = 0; i < got.elements(); ++i) {
      const int64_t t = i / blocks % 60;
      const int64_t head = i / blocks / 60;
      const int64_t block = i % blocks;
      const bool own_row = t == 7 && (reduce || head == 1) && block * 24 <= 247;
      if (own_row || (t >= 40 && block == 280 / 24)) {
        EXPECT_TRUE(std::isnan(got.get(i))) << i;
      } else {
        EXPECT_EQ(got.bits(i), want.bits(i)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
