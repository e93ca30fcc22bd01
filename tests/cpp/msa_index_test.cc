// The indexer against the oracle: every form of rows and keys, sizes around blocks and tiles, ties, lengths, needles.
#include "msa_index.h"

#include <gtest/gtest.h>

#include <climits>
#include <limits>
#include <vector>

namespace tessera::test {
namespace {

std::vector<IndexCase> geometries() {
  const auto strided = cases::Layout::kStrided;
  const auto offsets = cases::Offset::kPerRequest;
  std::vector<IndexCase> all = {
      {},
      {.requests = 3, .key_heads = 4, .layout = strided},
      {.requests = 4, .queries = 33, .offset = offsets, .layout = cases::Layout::kBroadcast},
      {.requests = 2, .key_heads = 4, .reduce = true, .init = 1},
      {.requests = 2, .heads = 5, .reduce = true, .layout = strided, .topk = 3},
      {.queries = 130, .keys = 400, .heads = 2, .key_heads = 2, .dim = 40, .block = 24, .topk = 5, .local = 2},
      {.queries = 300, .keys = 300, .heads = 1, .block = 8, .local = 0},  // several row tiles
      {.queries = 3, .keys = 300, .heads = 64, .topk = 2},                // more heads than a group of rows
      {.queries = 2, .keys = 200, .heads = 300, .dim = 8},                // more heads than a row tile
      {.queries = 90, .keys = 50},                                        // the first rows are empty
      {.queries = 7, .keys = 600, .block = 200, .topk = 2},
      {.queries = 9, .keys = 520, .block = 129, .topk = 2, .local = 0},
      {.requests = 2, .spare_blocks = 3},
      {.requests = 2, .spare_blocks = -4},
      {.requests = 2, .spare_blocks = -10},
      {.requests = 0},
  };
  for (const Form form : {Form::kPacked, Form::kPaged, Form::kPackedLayout}) {
    const std::vector<int64_t> keys_of = {150, 0, 129, 1, 64};
    all.push_back({.requests = 5, .keys_form = form, .keys_of = keys_of, .layout = strided});
    all.push_back({.requests = 5, .keys_form = form, .keys_of = keys_of, .offset = offsets});
    all.push_back(
        {.requests = 5, .packed_q = true, .keys_form = form, .rows_of = {40, 0, 1, 3, 37}, .keys_of = keys_of});
    all.push_back({.requests = 5,
                   .key_heads = 4,
                   .reduce = true,
                   .packed_q = true,
                   .keys_form = form,
                   .rows_of = {40, 7, 0, 3, 40},
                   .keys_of = keys_of,
                   .layout = strided});
    all.push_back({.requests = 5,
                   .key_heads = 4,
                   .block = 1,
                   .packed_q = true,
                   .keys_form = form,
                   .rows_of = {1, 1, 1, 1, 1},
                   .keys_of = keys_of,
                   .topk = 9,
                   .spare_blocks = 5});
  }
  for (int64_t page_size : {1, 3, 24, 64, 128, 256}) {
    for (const Form form : {Form::kPaged, Form::kPackedLayout}) {
      all.push_back({.requests = 3, .keys = 300, .keys_form = form, .page_size = page_size, .keys_of = {300, 257, 31}});
    }
  }
  for (int64_t queries : {0, 1, 2, 11, 12, 13, 48, 49}) {
    for (int64_t keys : {0, 1, 16, 127, 128, 129}) all.push_back({.queries = queries, .keys = keys, .topk = 2});
  }
  for (int64_t dim : {1, 3, 8, 31, 65, 128, 512}) all.push_back({.dim = dim});
  for (int64_t block : {1, 2, 3, 7, 8, 17, 64, 100, 127, 128, 150, 1000}) all.push_back({.block = block, .topk = 3});
  for (int64_t heads : {1, 2, 3, 5, 16, 48, 49}) all.push_back({.heads = heads});
  for (int64_t topk : {1, 2, 9, 10, 11, 40}) all.push_back({.topk = topk});
  all.push_back({.queries = 5, .keys = 20, .block = INT64_MAX, .topk = 1});
  return all;
}

class IndexGeometry : public testing::TestWithParam<IndexCase> {};
INSTANTIATE_TEST_SUITE_P(MsaIndex, IndexGeometry, testing::ValuesIn(geometries()));

TEST_P(IndexGeometry, MatchesTheOracle) {
  for (tessera_dtype dtype : kFloats) expect_right(Index(GetParam(), dtype));
}

// ---- Many keys -----------------------------------------------------------------------------------------------------

// Wide page tables, more than a thousand blocks, and keys enough that one row is cut into chunks.
TEST(MsaIndex, FindsNeedlesAmongManyKeys) {
  IndexCase c = {.queries = 2,
                 .keys = 20000,
                 .heads = 2,
                 .dim = 8,
                 .block = 16,
                 .packed_q = true,
                 .keys_form = Form::kPaged,
                 .page_size = 16,
                 .topk = 3};
  Index call(c, TESSERA_BF16);
  call.q.fill(1);
  const int64_t needles[] = {16 * 1000 + 5, 16 * 256 + 15};
  for (int64_t key : needles) {
    for (int64_t d = 0; d < c.dim; ++d) call.k.set(call.paged.at(0, 0, key) + d, 100);
  }
  for_each_variant(TESSERA_BF16, [&](const tessera_context& with) {
    const TestTensor ids = call.select(with);
    for (int64_t list = 0; list < 4; ++list) {
      EXPECT_EQ(ids.get(list * 3), 256);
      EXPECT_EQ(ids.get(list * 3 + 1), 1000);
      EXPECT_EQ(ids.get(list * 3 + 2), 1249);
    }
  });
  expect_right(Index(c, TESSERA_F32));
}

TEST(MsaIndex, TakesManyBlocks) {
  for (int64_t blocks : {1025, 8193}) {
    for (int64_t block : {1, 3}) {
      const int64_t keys = blocks * block - (block - 1);
      expect_right(Index({.queries = 5, .keys = keys, .heads = 2, .dim = 8, .block = block, .topk = 60}, TESSERA_F32));
    }
  }
}

// ---- The rule ------------------------------------------------------------------------------------------------------

void expect_exact(const Index& call) {
  const std::vector<int32_t> want = call.expected_lists().ids;
  for_each_variant(call.dtype, [&](const tessera_context& with) {
    const TestTensor got = call.select(with);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got.get(static_cast<int64_t>(i)), want[i]) << "list " << i / static_cast<size_t>(call.shape.topk);
    }
  });
}

// Few kinds of small integers: every score occurs many times.
Index with_ties(const IndexCase& c, tessera_dtype dtype, int64_t kinds) {
  Index call(c, dtype);
  Random random(5);
  for (int64_t i = 0; i < call.q.elements(); ++i) call.q.set(i, static_cast<double>(random.below(3)) - 1);
  for (int64_t i = 0; i < call.k.elements(); ++i) call.k.set(i, static_cast<double>(random.below(kinds)) - 1);
  return call;
}

TEST(MsaIndex, BreaksTiesByTheLowerId) {
  for (tessera_dtype dtype : {TESSERA_BF16, TESSERA_F32}) {
    for (int64_t kinds : {1, 2, 3}) {
      expect_exact(with_ties({.queries = 60, .keys = 320, .dim = 4, .block = 8, .topk = 7}, dtype, kinds));
      expect_exact(with_ties({.queries = 60, .keys = 320, .dim = 2, .block = 8, .reduce = true, .topk = 7, .local = 0},
                             dtype, kinds));
    }
  }
}

TEST(MsaIndex, ForcesBlocksWhateverTheirScore) {
  for (int64_t init : {0, 1, 3}) {
    for (int64_t local : {0, 1, 2}) {
      for (int64_t topk : {3, 4, 5}) {
        if (local + init > topk) continue;
        expect_exact(
            with_ties({.queries = 200, .keys = 200, .dim = 4, .block = 8, .topk = topk, .local = local, .init = init},
                      TESSERA_F32, 3));
      }
    }
  }
}

TEST(MsaIndex, NanRanksLast) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (double poison : {std::nan(""), infinity, -infinity}) {
    for (int64_t key : {0, 3, 120, 131, 319}) {
      SCOPED_TRACE(testing::Message() << poison << " in key " << key);
      for (bool reduce : {false, true}) {
        Index call =
            with_ties({.queries = 60, .keys = 320, .dim = 4, .block = 8, .reduce = reduce, .topk = 6}, TESSERA_F32, 3);
        call.k.set(key * 4 + 1, poison);
        expect_right(call);
        expect_exact(call);
      }
    }
  }
}

// With no more visible blocks than topk nothing is scored, so nothing can go wrong.
TEST(MsaIndex, ListsAllBlocksWhereNoMoreAreVisible) {
  Index call({.topk = 10}, TESSERA_F32);
  call.q.fill(std::nan(""));
  expect_exact(call);
}

TEST(MsaIndex, GivesEachHeadItsOwnList) {
  Index call({.queries = 1, .keys = 20, .heads = 2, .dim = 2, .block = 1, .topk = 2}, TESSERA_F32);
  call.q.fill(0);
  call.k.fill(0);
  call.q.set(0, 1);
  call.q.set(3, 1);
  call.k.set(7 * 2, 9);
  call.k.set(11 * 2 + 1, 9);
  const TestTensor ids = call.select();
  EXPECT_EQ(ids.get(0), 7);
  EXPECT_EQ(ids.get(2), 11);
}

// ---- Bad data is masked --------------------------------------------------------------------------------------------

TEST(MsaIndex, KeysBehindInvalidPagesDoNotExist) {
  for (int64_t page_size : {1, 16, 24, 128}) {
    for (int64_t block : {8, 24, 200}) {
      Index call({.requests = 2,
                  .queries = 20,
                  .keys = 500,
                  .block = block,
                  .keys_form = Form::kPaged,
                  .page_size = page_size,
                  .topk = 2},
                 TESSERA_F32);
      Random random(3);
      const int64_t invalid[] = {-1, INT_MIN, INT_MAX, call.k.view().shape[0]};
      for (int64_t i = 0; i < call.page_table.elements(); ++i) {
        if (random.chance(3)) call.page_table.set(i, static_cast<double>(random.pick(invalid)));
      }
      for (int64_t i = 0; i + 3 < call.paged.max_pages(); ++i) call.page_table.set(call.paged.entry(1, i), -7);
      expect_right(call);
    }
  }
}

TEST(MsaIndex, LengthsAreCutToWhatThereIs) {
  Index call({.requests = 4, .queries = 3, .keys = 64, .block = 8, .keys_form = Form::kPaged, .spare_blocks = 5},
             TESSERA_F32);
  for (int64_t i = 0; i < call.page_table.elements(); ++i) call.page_table.set(i, static_cast<double>(i % 7));
  call.k.fill(0.5);
  const double lengths[] = {INT_MAX, INT_MIN, -1, 81};
  for (int64_t b = 0; b < 4; ++b) call.seqused_k.set(b, lengths[b]);
  expect_right(call);
}

TEST(MsaIndex, RequestsWithImpossibleLengthsAreEmpty) {
  const std::vector<std::vector<double>> row_bounds = {{0, 30, 20, 60}, {-5, 30, 40, 60}, {10, 30, 30, 55},
                                                       {0, 30, 40, 61}, {50, 10, 60, 60}, {0, INT_MAX, INT_MIN, 60},
                                                       {5, 5, 5, 5}};
  const std::vector<std::vector<double>> key_bounds = {{0, 200, 100, 300}, {-1, 100, 200, 300}, {300, 0, 100, 301}};
  for (const auto& rows : row_bounds) {
    for (const auto& keys : key_bounds) {
      Index call({.requests = 3, .queries = 20, .keys = 100, .block = 8, .packed_q = true, .keys_form = Form::kPacked},
                 TESSERA_F32);
      for (int64_t i = 0; i < 4; ++i) {
        call.cu_q.set(i, rows[static_cast<size_t>(i)]);
        call.cu_k.set(i, keys[static_cast<size_t>(i)]);
      }
      expect_right(call);
    }
  }
}

TEST(MsaIndex, RowsPerRequestMayBeANumber) {
  Index call({.requests = 3, .queries = 4, .packed_q = true, .keys_form = Form::kPaged, .keys_of = {150, 20, 99}},
             TESSERA_BF16);
  const Index by_bounds = call;
  call.cu_q = {};
  const TestTensor to = call.indices_tensor();
  auto args = call.select_args(to);
  args.index.sequences.seqlen_q = 4;
  ASSERT_EQ(tessera_msa_select(&args, nullptr), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(to.all_bits(), by_bounds.select().all_bits());
}

TEST(MsaIndex, ReferenceBackendIsTheOracle) {
  tessera_context context = {};
  context.backend = TESSERA_BACKEND_REFERENCE;
  const Index call({.requests = 2, .key_heads = 4, .layout = cases::Layout::kStrided}, TESSERA_F16);
  EXPECT_TRUE(scores_within(call.scores(context), call.expected_scores()));
  const TestTensor ids = call.select(context);
  const std::vector<int32_t> want = call.expected_lists().ids;
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(ids.get(static_cast<int64_t>(i)), want[i]);
}

TEST(MsaIndex, BlocksHave128KeysByDefault) {
  const Index call({.queries = 3, .keys = 600, .block = 128, .topk = 2}, TESSERA_BF16);
  const TestTensor to = call.indices_tensor();
  auto args = call.select_args(to);
  args.index.block_size = 0;
  ASSERT_EQ(tessera_msa_select(&args, nullptr), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(to.all_bits(), call.select().all_bits());
}

}  // namespace
}  // namespace tessera::test
