// What must not change a bit of QSA's scores and lists: executors, workspaces, forms of the same rows and keys, other
// requests, other rows, and whatever lies where no row looks.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention_bits.h"
#include "qsa_index.h"
#include "qsa_mqa.h"

namespace tessera::test {
namespace {

// Calls with several tiles of rows and keys, and several requests.
const QsaCase kIndexCalls[] = {
    {.requests = 2, .queries = 130, .keys = 400, .topk = 32},
    {.requests = 3,
     .queries = 60,
     .keys = 300,
     .heads = 3,
     .rows = Rows::kPacked,
     .rows_of = {60, 1, 30},
     .page_size = 24,
     .keys_of = {260, 100, 257},
     .weights = true,
     .layout = cases::Layout::kStrided},
    {.requests = 4, .queries = 50, .keys = 200, .heads = 5, .rows = Rows::kMapped, .positions = Positions::kScattered},
    {.requests = 2, .queries = 1, .keys = 9000, .dim = 64, .page_size = 64, .topk = 100},
    {.queries = 1, .keys = 20000, .heads = 2, .dim = 8, .topk = 512},  // one row, many keys
};

class QsaBits : public testing::TestWithParam<Choice> {
 protected:
  tessera_context context() const { return with_variant(GetParam().variant.c_str()); }
  QsaIndex make(const QsaCase& c) const { return QsaIndex(c, GetParam().dtype); }
  static std::vector<Bits> run(const QsaIndex& call, const tessera_context& with) {
    return {call.scores(with).all_bits(), call.select(with).all_bits(), call.select_tokens(with).all_bits()};
  }
};
INSTANTIATE_TEST_SUITE_P(Qsa, QsaBits, testing::ValuesIn(choices()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(QsaBits, AreTheSameForEveryNumberOfThreads) {
  for (const QsaCase& c : kIndexCalls) {
    const QsaIndex call = make(c);
    const auto want = run(call, context());
    for (int n : {1, 2, 3, 7}) {
      tessera_context threads = context();
      threads.executor = {TESSERA_EXECUTOR_THREADS, n, 0, 0, nullptr, nullptr};
      EXPECT_EQ(run(call, threads), want) << n;
    }
  }
}

TEST_P(QsaBits, OfIntervalsAndCountsAreTheSameForEveryNumberOfThreads) {
  const Prefill prefill({.rows = 300, .keys = 400}, GetParam().dtype);
  const Decode decode({.rows = 2, .keys = 5000, .columns = 5000, .page_size = 24}, GetParam().dtype);
  for (int n : {1, 2, 3, 7}) {
    tessera_context threads = context();
    threads.executor = {TESSERA_EXECUTOR_THREADS, n, 0, 0, nullptr, nullptr};
    EXPECT_EQ(prefill.scores(threads).all_bits(), prefill.scores(context()).all_bits()) << n;
    EXPECT_EQ(decode.scores(threads).all_bits(), decode.scores(context()).all_bits()) << n;
  }
}

TEST_P(QsaBits, AreTheSameInParts) {
  for (const QsaCase& c : kIndexCalls) {
    const QsaIndex call = make(c);
    const auto want = run(call, context());
    for (int parts : {1, 2, 5}) {
      const TestTensor scores = call.scores_tensor(), ids = call.indices_tensor(), tokens = call.tokens_tensor();
      const auto scores_args = call.scores_args(scores);
      const auto select_args = call.select_args(ids, tokens);
      tessera_context part = context();
      part.executor = {TESSERA_EXECUTOR_PART, 0, 0, parts, nullptr, nullptr};
      for (part.executor.part = parts - 1; part.executor.part >= 0; --part.executor.part) {
        ASSERT_EQ(tessera_qsa_indexer_mqa_score(&scores_args, &part), TESSERA_OK) << tessera_last_error();
        ASSERT_EQ(tessera_qsa_select(&select_args, &part), TESSERA_OK) << tessera_last_error();
      }
      EXPECT_EQ((std::vector<Bits>{scores.all_bits(), ids.all_bits(), tokens.all_bits()}), want) << parts;
    }
  }
}

TEST_P(QsaBits, AreTheSameInTheCallersWorkspace) {
  for (const QsaCase& c : kIndexCalls) {
    const QsaIndex call = make(c);
    const auto want = run(call, context());
    const TestTensor scores = call.scores_tensor(), ids = call.indices_tensor();
    expect_same_in_workspace(call.scores_args(scores), scores, want[0], context(),
                             tessera_qsa_indexer_mqa_score_workspace_size, tessera_qsa_indexer_mqa_score);
    expect_same_in_workspace(call.select_args(ids), ids, want[1], context(), tessera_qsa_select_workspace_size,
                             tessera_qsa_select);
  }
}

// ---- Forms ---------------------------------------------------------------------------------------------------------

TEST_P(QsaBits, AreTheSameInEveryForm) {
  for (int64_t queries : {1, 50}) {
    QsaCase c = {.requests = 2, .queries = queries, .keys = 410, .keys_of = {410, 350}, .topk = 20};
    const auto want = run(make(c), context());
    for (const Rows rows : {Rows::kBatch, Rows::kPacked, Rows::kBoth}) {
      c.rows = rows;
      c.page_size = 0;
      EXPECT_EQ(run(make(c), context()), want);
      for (int64_t page_size : {1, 3, 16, 24, 64, 128, 256, 1000}) {
        c.page_size = page_size;
        EXPECT_EQ(run(make(c), context()), want) << page_size;
      }
    }
  }
}

// Intervals that begin at the first key, and counts, give the bits that positions give.
TEST_P(QsaBits, AreTheSameOfEveryOperator) {
  const QsaIndex call = make({.queries = 60, .keys = 300}), paged = make({.queries = 60, .keys = 300, .page_size = 24});
  const Bits want = call.scores(context()).all_bits();
  const auto seen = [&](int64_t t) { return (static_cast<int64_t>(call.positions.get(t)) + 1) / 4; };
  const TestTensor starts = call.ints({60}, [](int64_t) { return 0; }), ends = call.ints({60}, seen);
  const TestTensor counts = call.ints({1, 60}, seen), scores(TESSERA_F32, {60, 300}), decoded(TESSERA_F32, {60, 300});
  const tessera_tensor q = {call.q.view().data, GetParam().dtype, 3, {60, 4, 16}, {64, 16, 1}};
  const tessera_tensor k = {call.k.view().data, GetParam().dtype, 2, {300, 16}, {16, 1}};
  const tessera_context with = context();
  const tessera_qsa_mqa_prefill_args prefill = {q, k, starts, ends, {}, nullptr, scores};
  ASSERT_EQ(tessera_qsa_mqa_prefill(&prefill, &with), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(scores.all_bits(), want);
  const tessera_qsa_mqa_decode_args decode = {paged.q, paged.key_view(), paged.page_table, counts,
                                              {},      nullptr,          decoded};
  ASSERT_EQ(tessera_qsa_mqa_decode(&decode, &with), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(decoded.all_bits(), want);
}

// Each request, and some rows of each, as calls of their own.
TEST_P(QsaBits, DoNotDependOnOtherRequestsAndRows) {
  for (const QsaCase& c : kIndexCalls) {
    if (c.packed()) continue;
    const QsaIndex call = make(c);
    const TestTensor whole = call.scores(context()), whole_ids = call.select(context());
    for (int64_t b = 0; b < c.requests; ++b) {
      for (int64_t t = 0; t < c.queries; t += 9) {
        tessera_qsa_index one = call.index();
        one.q = slice(slice(one.q, 0, b, 1), 1, t, 1);
        one.query_positions = slice(slice(one.query_positions, 0, b, 1), 1, t, 1);
        if (c.page_size == 0) one.k = slice(one.k, 0, b, 1);
        if (c.page_size != 0) one.page_table = slice(one.page_table, 0, b, 1);
        if (one.seq_lens_k.ndim != 0) one.seq_lens_k = slice(one.seq_lens_k, 0, b, 1);
        const TestTensor scores(TESSERA_F32, {1, 1, c.keys}), ids(TESSERA_I32, {1, 1, c.topk});
        const tessera_qsa_indexer_mqa_score_args scores_args = {one, scores};
        const tessera_qsa_select_args select_args = {one, c.topk, ids, {}, {}, {}};
        const tessera_context with = context();
        ASSERT_EQ(tessera_qsa_indexer_mqa_score(&scores_args, &with), TESSERA_OK) << tessera_last_error();
        ASSERT_EQ(tessera_qsa_select(&select_args, &with), TESSERA_OK) << tessera_last_error();
        const int64_t row = b * c.queries + t;
        for (int64_t g = 0; g < c.keys; ++g) ASSERT_EQ(scores.bits(g), whole.bits(row * c.keys + g)) << row;
        for (int64_t i = 0; i < c.topk; ++i) ASSERT_EQ(ids.get(i), whole_ids.get(row * c.topk + i)) << row;
      }
    }
  }
}

// ---- Poison --------------------------------------------------------------------------------------------------------

// Rows see 60 to 70 of 150 keys; the others hold anything.
TEST_P(QsaBits, InvisibleKeysChangeNothing) {
  QsaIndex clean = make({.queries = 20, .keys = 150, .topk = 9});
  for (int64_t t = 0; t < 20; ++t) clean.positions.set(t, static_cast<double>(4 * 60 + 2 * t));
  const auto want = run(clean, context());
  for (double poison : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    QsaIndex dirty = clean;
    dirty.k = clean.k.clone();
    for (int64_t g = 70; g < 150; ++g) {
      for (int64_t d = 0; d < 16; ++d) dirty.k.set(clean.key_at(0, g) + d, poison);
    }
    EXPECT_EQ(run(dirty, context()), want);
  }
}

TEST_P(QsaBits, SlotsWithoutKeysChangeNothing) {
  const QsaCase c = {.requests = 3, .keys = 300, .page_size = 128, .keys_of = {129, 0, 290}};
  const auto want = run(QsaIndex(c, GetParam().dtype, 0.0), context());
  EXPECT_EQ(run(QsaIndex(c, GetParam().dtype, std::nan("")), context()), want);
  EXPECT_EQ(run(QsaIndex(c, GetParam().dtype, std::numeric_limits<double>::infinity()), context()), want);
  const DecodeCase d = {.rows = 2, .keys = 300, .columns = 300, .page_size = 128};
  const Bits decoded = Decode(d, GetParam().dtype, 0.0).scores(context()).all_bits();
  EXPECT_EQ(Decode(d, GetParam().dtype, std::nan("")).scores(context()).all_bits(), decoded);
}

// Rows of no request, and those past seq_lens_q, may hold anything.
TEST_P(QsaBits, RowsThatDoNotCountChangeNothing) {
  QsaIndex clean = make({.requests = 3, .queries = 30, .keys = 200, .rows = Rows::kMapped, .weights = true});
  clean.lens_q = clean.ints({3}, [](int64_t b) { return 30 - 10 * b; });
  const auto want = run(clean, context());
  QsaIndex dirty = clean;
  dirty.q = clean.q.clone();
  dirty.weights = clean.weights.clone();
  for (int64_t t = 0; t < clean.rows(); ++t) {
    const int64_t b = clean.request_of[static_cast<size_t>(t)];
    if (b >= 0 && clean.index_of[static_cast<size_t>(t)] < 30 - 10 * b) continue;
    for (int64_t i = 0; i < 64; ++i) dirty.q.set(t * 64 + i, std::nan(""));
    for (int64_t h = 0; h < 4; ++h) dirty.weights.set(t * 4 + h, std::nan(""));
  }
  EXPECT_EQ(run(dirty, context()), want);
}

// Weights of 1 are no weights.
TEST_P(QsaBits, WeightsOfOneAreTheDefault) {
  QsaIndex call = make({.requests = 2, .keys = 300, .weights = true});
  call.weights.fill(1);
  const auto want = run(call, context());
  call.weights = {};
  EXPECT_EQ(run(call, context()), want);
}

}  // namespace
}  // namespace tessera::test
