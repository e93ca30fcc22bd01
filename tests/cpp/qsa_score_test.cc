// QSA's indexer against the oracle: every form of rows and keys, every tensor that says what a row sees, sizes around
// tiles, blocks and pages.
#include <gtest/gtest.h>

#include <climits>
#include <vector>

#include "qsa_index.h"
#include "qsa_mqa.h"

namespace tessera::test {
namespace {

constexpr auto kStrided = cases::Layout::kStrided;
constexpr auto kBroadcast = cases::Layout::kBroadcast;

std::vector<QsaCase> geometries() {
  std::vector<QsaCase> all = {
      {},
      {.requests = 3, .weights = true, .layout = kStrided},
      {.requests = 3, .weights = true, .layout = kBroadcast},
      {.requests = 2, .positions = Positions::kInferred},
      {.requests = 2, .positions = Positions::kScattered, .lens_q = true},
      {.requests = 5, .keys_of = {40, 0, 17, 1, 30}, .lens_q = true, .layout = kStrided},
      {.queries = 390, .keys = 20, .heads = 1},                  // more rows than a tile has
      {.requests = 2, .queries = 100, .keys = 140, .heads = 5},  // several tiles of rows and of keys
      {.queries = 1, .keys = 300, .heads = 4, .dim = 128},
      {.queries = 2, .keys = 200, .heads = 400, .dim = 8},  // more heads than a tile has rows
      {.queries = 33, .keys = 90, .heads = 64, .dim = 24, .weights = true},
      {.requests = 2, .scale = 0.01f, .spare = 3},
      {.requests = 2, .spare = -4},
      {.requests = 2, .spare = -40},
      {.requests = 0},
      {.queries = 300, .keys = 300, .rows = Rows::kLone, .topk = 64},
      {.queries = 30, .keys = 8, .rows = Rows::kLone, .positions = Positions::kInferred},
  };
  for (const Rows rows : {Rows::kPacked, Rows::kMapped, Rows::kBoth}) {
    for (const int64_t page_size : {0, 8}) {
      const std::vector<int64_t> rows_of = {40, 0, 1, 3, 37}, keys_of = {40, 9, 0, 33, 1};
      for (const Positions positions : {Positions::kInferred, Positions::kLast, Positions::kScattered}) {
        all.push_back({.requests = 5,
                       .rows = rows,
                       .rows_of = rows_of,
                       .page_size = page_size,
                       .keys_of = keys_of,
                       .positions = positions,
                       .weights = positions == Positions::kLast,
                       .lens_q = positions == Positions::kScattered,
                       .head_axis = positions == Positions::kLast,
                       .layout = positions == Positions::kInferred ? kStrided : cases::Layout::kDense});
      }
      all.push_back({.requests = 5, .queries = 1, .keys = 140, .rows = rows, .page_size = page_size});
    }
  }
  for (int64_t page_size : {1, 2, 3, 24, 64, 100, 128, 196, 256}) {
    all.push_back({.requests = 3, .queries = 5, .keys = 300, .page_size = page_size, .keys_of = {300, 257, 31}});
  }
  for (int64_t queries : {0, 1, 2, 3, 12, 13, 49, 96, 97}) {
    for (int64_t keys : {0, 1, 7, 8, 127, 128, 129}) {
      all.push_back({.queries = queries, .keys = keys, .positions = Positions::kScattered, .topk = 2});
    }
  }
  for (int64_t heads : {1, 2, 3, 4, 5, 7, 8, 16, 48, 64}) all.push_back({.queries = 11, .keys = 131, .heads = heads});
  for (int64_t dim : {1, 3, 8, 9, 31, 64, 65, 128, 200, 256, 512})
    all.push_back({.queries = 7, .keys = 133, .dim = dim});
  for (int64_t block : {1, 2, 3, 5, 8, 64, 1000}) all.push_back({.requests = 2, .block = block});
  for (int64_t topk : {1, 2, 39, 40, 41, 512}) all.push_back({.topk = topk});
  return all;
}

class QsaGeometry : public testing::TestWithParam<QsaCase> {};
INSTANTIATE_TEST_SUITE_P(Qsa, QsaGeometry, testing::ValuesIn(geometries()));

TEST_P(QsaGeometry, MatchesTheOracle) {
  for (tessera_dtype dtype : kFloats) expect_right(QsaIndex(GetParam(), dtype));
}

TEST(QsaScore, TakesManyKeys) {
  expect_right(QsaIndex({.queries = 3, .keys = 5000, .heads = 2, .dim = 8, .topk = 60}, TESSERA_F32));
  expect_right(
      QsaIndex({.requests = 2, .queries = 1, .keys = 9000, .dim = 8, .page_size = 100, .topk = 60}, TESSERA_BF16));
}

// A NaN in a key or in a row of q reaches the scores that it belongs to and no other.
TEST(QsaScore, NanStaysWithItsRowAndKey) {
  for (tessera_dtype dtype : {TESSERA_BF16, TESSERA_F32}) {
    const QsaIndex clean({.queries = 60, .keys = 300, .heads = 3}, dtype);
    QsaIndex dirty = clean;
    dirty.k = clean.k.clone();
    dirty.k.set(280 * clean.shape.dim + 5, std::nan(""));
    dirty.q = clean.q.clone();
    dirty.q.set((7 * 3 + 1) * clean.shape.dim, std::nan(""));
    expect_right(dirty);
    for_each_variant(dtype, [&](const tessera_context& with) {
      const TestTensor want = clean.scores(with), got = dirty.scores(with);
      for (int64_t i = 0; i < got.elements(); ++i) {
        const bool visible = want.get(i) != -std::numeric_limits<double>::infinity();
        if (visible && (i / 300 == 7 || i % 300 == 280)) {
          EXPECT_TRUE(std::isnan(got.get(i))) << i;
        } else {
          EXPECT_EQ(got.bits(i), want.bits(i)) << i;
        }
      }
    });
  }
}

// ---- Bad data is masked --------------------------------------------------------------------------------------------

TEST(QsaScore, KeysBehindInvalidPagesDoNotExist) {
  for (int64_t page_size : {1, 8, 24, 128}) {
    for (const Rows rows : {Rows::kBatch, Rows::kPacked}) {
      for (int64_t topk : {2, 120, 400}) {  // also more than there are
        QsaIndex call({.requests = 2, .queries = 9, .keys = 250, .rows = rows, .page_size = page_size, .topk = topk},
                      TESSERA_F32);
        Random random(3);
        const int64_t invalid[] = {-1, INT_MIN, INT_MAX, call.paged.k.view().shape[0]};
        for (int64_t i = 0; i < call.page_table.elements(); ++i) {
          if (random.chance(3)) call.page_table.set(i, static_cast<double>(random.pick(invalid)));
        }
        for (int64_t i = 0; i + 3 < call.paged.max_pages(); ++i) call.page_table.set(call.paged.entry(1, i), -7);
        expect_right(call);
      }
    }
  }
}

TEST(QsaScore, RequestsWithImpossibleBoundsAreEmpty) {
  const std::vector<std::vector<double>> bounds = {{0, 30, 20, 60}, {-5, 30, 40, 60},          {10, 30, 30, 55},
                                                   {0, 30, 40, 61}, {0, INT_MAX, INT_MIN, 60}, {5, 5, 5, 5},
                                                   {60, 0, 0, 60}};
  for (const auto& rows : bounds) {
    for (const Rows form : {Rows::kPacked, Rows::kBoth}) {
      for (const Positions positions : {Positions::kInferred, Positions::kLast}) {
        QsaIndex call({.requests = 3, .queries = 20, .rows = form, .positions = positions}, TESSERA_F32);
        for (int64_t i = 0; i < 4; ++i) call.cu_q.set(i, rows[static_cast<size_t>(i)]);
        expect_right(call);
      }
    }
  }
}

// With both tensors, a row that its request's bounds leave out is no request's.
TEST(QsaScore, RowsOutsideTheirRequestSeeNothing) {
  for (const Positions positions : {Positions::kInferred, Positions::kLast}) {
    QsaIndex call({.requests = 3, .queries = 20, .rows = Rows::kBoth, .positions = positions}, TESSERA_F32);
    const double bounds[] = {3, 20, 45, 50};
    for (int64_t i = 0; i < 4; ++i) call.cu_q.set(i, bounds[i]);
    expect_right(call);
  }
}

TEST(QsaScore, LengthsAreCutToWhatThereIs) {
  for (int64_t page_size : {0, 8}) {
    QsaIndex call({.requests = 4, .queries = 6, .page_size = page_size, .keys_of = {40, 40, 40, 40}}, TESSERA_F32);
    const double lengths[] = {INT_MAX, INT_MIN, -1, 81};
    call.key_memory().fill(0.5);
    for (int64_t b = 0; b < 4; ++b) call.lens_k.set(b, lengths[b]);
    expect_right(call);
  }
}

// Without seq_lens_k whole pages are seen.
TEST(QsaScore, LengthsAreOptional) {
  QsaIndex call({.requests = 2, .queries = 6, .keys = 48, .page_size = 8}, TESSERA_BF16);
  call.lens_k = {};
  for (int64_t t = 0; t < 12; ++t) call.positions.set(t, static_cast<double>(100 * t));
  expect_right(call);
}

TEST(QsaScore, ReferenceBackendIsTheOracle) {
  tessera_context context = {};
  context.backend = TESSERA_BACKEND_REFERENCE;
  const QsaIndex call({.requests = 2, .weights = true, .layout = kStrided}, TESSERA_F16);
  EXPECT_TRUE(scores_within(call.scores(context), call.expected_scores()));
  EXPECT_EQ(ids_of(call.select(context)), call.expected_lists().ids);
}

TEST(QsaScore, BlocksHave4TokensByDefault) {
  const QsaIndex call({.queries = 9, .keys = 60}, TESSERA_BF16);
  const TestTensor to = call.scores_tensor();
  auto args = call.scores_args(to);
  args.index.block_size = 0;
  ASSERT_EQ(tessera_qsa_indexer_mqa_score(&args, nullptr), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(to.all_bits(), call.scores().all_bits());
}

// ---- Intervals and counts ------------------------------------------------------------------------------------------

TEST(QsaMqa, PrefillMatchesTheOracle) {
  std::vector<PrefillCase> all = {{.weights = true, .layout = kStrided},
                                  {.key_axis = true, .layout = kBroadcast},
                                  {.rows = 400, .keys = 20, .key_axis = true},
                                  {.rows = 3, .keys = 260, .heads = 64, .dim = 128, .weights = true}};
  for (int64_t rows : {0, 1, 2, 97, 130}) {
    for (int64_t keys : {0, 1, 7, 128, 129, 300}) all.push_back({.rows = rows, .keys = keys});
  }
  for (const PrefillCase& c : all) {
    SCOPED_TRACE(testing::PrintToString(c));
    for (tessera_dtype dtype : kFloats) {
      const Prefill call(c, dtype);
      for_each_variant(
          dtype, [&](const tessera_context& with) { EXPECT_TRUE(scores_within(call.scores(with), call.expected())); });
    }
  }
}

TEST(QsaMqa, DecodeMatchesTheOracle) {
  std::vector<DecodeCase> all = {{.weights = true, .row_axis = true, .head_axis = true, .layout = kStrided},
                                 {.rows = 4, .weights = true, .row_lens = true, .layout = kStrided},
                                 {.rows = 3, .row_lens = true, .layout = kBroadcast},
                                 {.row_lens = true},
                                 {.rows = 2, .columns = 20},
                                 {.columns = 0},
                                 {.requests = 0},
                                 {.requests = 40, .keys = 300, .columns = 301, .heads = 2}};
  for (int64_t page_size : {1, 3, 8, 24, 64, 196, 256}) {
    for (int64_t rows : {1, 4}) {
      all.push_back({.rows = rows, .keys = 300, .columns = 320, .page_size = page_size, .dim = 128});
    }
  }
  for (const DecodeCase& c : all) {
    SCOPED_TRACE(testing::PrintToString(c));
    for (tessera_dtype dtype : kFloats) {
      const Decode call(c, dtype);
      for_each_variant(
          dtype, [&](const tessera_context& with) { EXPECT_TRUE(scores_within(call.scores(with), call.expected())); });
    }
  }
}

TEST(QsaMqa, DecodeCutsCountsToWhatThereIs) {
  Decode call({.requests = 5, .columns = 90}, TESSERA_F32, 0.25);
  const double counts[] = {INT_MAX, INT_MIN, -1, 0, 64};
  for (int64_t b = 0; b < 5; ++b) call.lens.set(b, counts[b]);
  for (int64_t i = 0; i < call.paged.page_table.elements(); i += 3) call.paged.page_table.set(i, -1);
  for_each_variant(TESSERA_F32, [&](const tessera_context& with) {
    EXPECT_TRUE(scores_within(call.scores(with), call.expected()));
  });
}

}  // namespace
}  // namespace tessera::test
