// Small calls on which other implementations of QSA's scores and selection have been wrong; each name says what went
// wrong, by number.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "by_hand.h"
#include "lazy.h"
#include "messages.h"
#include "qsa_index.h"
#include "qsa_mqa.h"

namespace tessera::test {
namespace {

using Ids = std::vector<int32_t>;

class QsaFaults : public testing::TestWithParam<std::string> {
 protected:
  tessera_context context() const { return with_variant(GetParam().c_str()); }
  Ids best(const std::vector<double>& scores, int64_t k) const {
    const TestTensor row = f32({static_cast<int64_t>(scores.size())}, scores), ids(TESSERA_I32, {k});
    const tessera_topk_blocks_args args = {row, ids};
    const tessera_context with = context();
    EXPECT_EQ(tessera_topk_blocks(&args, &with), TESSERA_OK) << tessera_last_error();
    return ids_of(ids);
  }
  void expect_correct(const QsaIndex& call) const {
    EXPECT_TRUE(scores_within(call.scores(context()), call.expected_scores()));
    EXPECT_TRUE(selection_within(call.select(context()), call.expected_lists()));
  }
};
INSTANTIATE_TEST_SUITE_P(Qsa, QsaFaults, testing::ValuesIn(variants()), [](const auto& test) { return test.param; });

// With values of f32.
class QsaRankFaults : public QsaFaults {};
std::vector<std::string> f32_variants() {
  std::vector<std::string> all = variants();
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& v) { return !takes(v, TESSERA_F32); }), all.end());
  return all;
}
INSTANTIATE_TEST_SUITE_P(Qsa, QsaRankFaults, testing::ValuesIn(f32_variants()),
                         [](const auto& test) { return test.param; });

Ids by_full_sort(const std::vector<double>& scores, int64_t k) {
  const TestTensor row = f32({static_cast<int64_t>(scores.size())}, scores);
  return reference::topk_blocks({row, TestTensor(TESSERA_I32, {k})}).ids;
}

// One row, at a position in tokens, over keys of one feature that are its scores.
QsaIndex row_of(const std::vector<double>& scores, int64_t position, int64_t topk, tessera_dtype dtype = TESSERA_BF16) {
  const auto keys = static_cast<int64_t>(scores.size());
  QsaIndex call({.queries = 1, .keys = keys, .heads = 1, .dim = 1, .scale = 1, .topk = topk}, dtype);
  call.q.fill(1);
  for (size_t g = 0; g < scores.size(); ++g) call.k.set(static_cast<int64_t>(g), scores[g]);
  call.positions.set(0, static_cast<double>(position));
  return call;
}

TEST_P(QsaRankFaults, F01_ABinOverflowsAndDropsCandidates) {
  Random random(1);
  std::vector<double> scores;
  for (int i = 0; i < 16385; ++i) scores.push_back(1 + 0.245 * static_cast<double>(random.below(1 << 22)) * 0x1p-22);
  for (int64_t k : {512, 2048}) {
    EXPECT_EQ(best(scores, k), by_full_sort(scores, k));
    EXPECT_EQ(ids_of(row_of(scores, 16385 * 4 - 1, k, TESSERA_F32).select(context())), by_full_sort(scores, k));
  }
}

TEST_P(QsaFaults, F02_TheSetVariesFromRunToRun) {
  for (int64_t queries : {1, 512}) {
    for (int64_t keys : {513, 1800, 8448}) {
      const QsaIndex call({.queries = queries, .keys = keys, .heads = 1, .dim = 8, .topk = 512}, TESSERA_BF16);
      const std::vector<uint32_t> want = call.select(context()).all_bits();
      for (int n : {1, 2, 4}) {
        tessera_context threads = context();
        threads.executor = {TESSERA_EXECUTOR_THREADS, n, 0, 0, nullptr, nullptr};
        for (int run = 0; run < (queries == 1 ? 3 : 1); ++run) EXPECT_EQ(call.select(threads).all_bits(), want);
      }
    }
  }
}

TEST_P(QsaRankFaults, F04_FirstComeInPlaceOfLargest) {
  std::vector<double> scores;  // one number in f16
  for (int i = 0; i < 5000; ++i) scores.push_back(1 + i * 7919 % 5000 * 0x1p-23);
  for (int64_t k : {512, 2048}) EXPECT_EQ(best(scores, k), by_full_sort(scores, k));
}

TEST_P(QsaRankFaults, F05_ATiedCutDrifts) {
  std::vector<double> scores;
  Ids first;
  for (int i = 0; i < 600; ++i) scores.push_back(i % 2 == 0 ? -0.0 : 0.0);
  for (int i = 0; i < 512; ++i) first.push_back(i);
  EXPECT_EQ(best(scores, 512), first);
  EXPECT_EQ(ids_of(row_of(scores, 2399, 512, TESSERA_F32).select(context())), first);
}

TEST_P(QsaFaults, F07_FutureBlocksAreSelected) {
  const QsaIndex call = row_of({1, 2, 3, 4}, 5, 2);
  EXPECT_EQ(ids_of(call.select(context())), (Ids{0, -1}));
  EXPECT_EQ(ids_of(call.select_tokens(context())), (Ids{0, 1, 2, 3, 4, 5, -1, -1, -1, -1, -1}));
}

TEST_P(QsaFaults, F08_NothingToSelect) {
  for (int32_t position : {0, 1, 2}) {
    const QsaIndex call = row_of({1, 2, 3, 4}, position, 1);
    for (double score : call.scores(context()).values().values()) EXPECT_EQ(score, -kInf);
    Ids tail(7, -1);
    for (int32_t i = 0; i <= position; ++i) tail[static_cast<size_t>(i)] = i;
    EXPECT_EQ(ids_of(call.select_tokens(context())), tail);
  }
}

// Pages of 1,077,120 and of 65,536 bytes, so far apart that 32 bits count neither bytes nor elements.
TEST_P(QsaFaults, F14_PageTimesStrideWraps) {
  struct Cache {
    int64_t stride, pages;  // elements
    std::vector<double> ids;
  };
  for (const Cache& c : {Cache{538560, 7025, {1994, 7024}}, Cache{32768, 65537, {32768, 65536}}}) {
    const Lazy memory(static_cast<size_t>(c.stride * c.pages * 2));
    if (memory.data == MAP_FAILED) GTEST_SKIP() << "8 GiB of address space are not to be had";
    QsaIndex call({.queries = 1, .keys = 16, .dim = 128, .page_size = 8}, TESSERA_BF16);
    const TestTensor want = call.scores(context());
    const tessera_tensor cache = {memory.data, TESSERA_BF16, 3, {c.pages, 8, 128}, {c.stride, 128, 1}};
    const reference::View to(cache);
    for (int64_t g = 0; g < 16; ++g) {
      const auto page = static_cast<int64_t>(c.ids[static_cast<size_t>(g / 8)]);
      for (int64_t d = 0; d < 128; ++d) to.set((page * 8 + g % 8) * 128 + d, call.paged.k.get(call.key_at(0, g) + d));
    }
    const TestTensor got = call.scores_tensor(), table = i32({1, 2}, c.ids);
    auto args = call.scores_args(got);
    args.index.k = cache;
    args.index.page_table = table;
    const tessera_context with = context();
    ASSERT_EQ(tessera_qsa_indexer_mqa_score(&args, &with), TESSERA_OK) << tessera_last_error();
    EXPECT_EQ(got.all_bits(), want.all_bits());
  }
}

// Rows of q, and of the scores, that begin 2^31 elements apart.
TEST_P(QsaFaults, F16_RowOffsetsOverflow) {
  const int64_t apart = int64_t{1} << 31;
  const Lazy q(static_cast<size_t>(2 * apart) * 2 + 4096), scores(static_cast<size_t>(2 * apart) * 4 + 4096);
  if (q.data == MAP_FAILED || scores.data == MAP_FAILED) GTEST_SKIP() << "24 GiB of address space are not to be had";
  const QsaIndex call({.queries = 3, .keys = 50}, TESSERA_BF16);
  const TestTensor want = call.scores(context());
  auto args = call.scores_args(want);
  args.index.q = {q.data, TESSERA_BF16, 4, {1, 3, 4, 16}, {0, apart, 16, 1}};
  args.scores = {scores.data, TESSERA_F32, 3, {1, 3, 50}, {0, apart, 1}};
  for (int64_t i = 0; i < call.q.elements(); ++i) reference::View(args.index.q).set(i, call.q.get(i));
  const tessera_context with = context();
  ASSERT_EQ(tessera_qsa_indexer_mqa_score(&args, &with), TESSERA_OK) << tessera_last_error();
  for (int64_t i = 0; i < want.elements(); ++i) EXPECT_EQ(reference::View(args.scores).get(i), want.get(i)) << i;
}

TEST_P(QsaFaults, F17_TooManyBlocks) {
  for (int64_t keys : {65535, 65536, 65537}) {
    std::vector<double> scores(static_cast<size_t>(keys), 0.5);
    scores.back() = 2;
    const QsaIndex call = row_of(scores, keys * 4 - 1, 2);
    EXPECT_EQ(ids_of(call.select(context())), (Ids{0, static_cast<int32_t>(keys - 1)}));
    EXPECT_EQ(call.scores(context()).get(keys - 1), 2);
  }
}

TEST_P(QsaFaults, F25_GarbageFromTheFirstTokenAfterPageOne) {
  for (int64_t page : {8, 16, 24, 32, 64}) {
    for (int64_t keys : {page - 1, page, page + 1}) {
      expect_correct(QsaIndex({.queries = 2, .keys = keys, .page_size = page}, TESSERA_BF16));
    }
  }
}

TEST_P(QsaFaults, F26_NeedlesAreMissedInLongContexts) {
  for (int64_t tokens : {131072, 262144}) {
    const int64_t keys = tokens / 4, needle = keys / 2 + 77;
    QsaIndex call({.queries = 1, .keys = keys, .heads = 1, .dim = 8, .page_size = 64, .topk = 512}, TESSERA_BF16);
    call.q.fill(1);
    for (int64_t d = 0; d < 8; ++d) call.paged.k.set(call.key_at(0, needle) + d, 8);
    const Ids ids = ids_of(call.select(context())), all = ids_of(call.select_tokens(context()));
    EXPECT_EQ(std::count(ids.begin(), ids.end(), needle), 1);
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(std::count(all.begin(), all.end(), 4 * needle + i), 1);
  }
}

TEST_P(QsaFaults, F28_EmptyBatches) {
  expect_correct(QsaIndex({.requests = 3, .rows = Rows::kPacked, .rows_of = {0, 0, 0}}, TESSERA_BF16));
  expect_correct(QsaIndex({.requests = 3, .rows = Rows::kPacked, .rows_of = {3, 0, 5}}, TESSERA_BF16));
  expect_correct(QsaIndex({.requests = 2, .page_size = 8, .keys_of = {0, 0}}, TESSERA_BF16));
  expect_correct(QsaIndex({.keys = 0}, TESSERA_BF16));
  Decode decode({}, TESSERA_BF16);
  decode.lens.fill(0);
  for (double score : decode.scores(context()).values().values()) EXPECT_EQ(score, -kInf);
}

TEST_P(QsaFaults, F29_PositionsClaimMoreThanTheLength) {
  QsaIndex call = row_of(std::vector<double>(32, 1), 115, 4);
  for (int32_t length : {0, 1, 3, 4, 6}) {
    const TestTensor lens = i32({1}, {double(length)});
    call.lens_k = lens;
    const Ids tokens = ids_of(call.select_tokens(context()));
    for (int32_t i = 0; i < 19; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], i < length ? i : -1) << length;
    expect_correct(call);
  }
}

TEST_P(QsaFaults, F35_AnInvalidPageIsReadAsPageZero) {
  QsaIndex call({.queries = 1, .keys = 40, .page_size = 8, .topk = 512}, TESSERA_BF16);
  for (int64_t i = 0; i < 8 * 16; ++i) call.paged.k.set(i, std::nan(""));
  for (double bad : {-1.0, double(call.paged.k.view().shape[0]), double(INT_MAX), double(INT_MIN)}) {
    const double pages[] = {1, bad, 2, bad, 3};
    for (int64_t i = 0; i < 5; ++i) call.page_table.set(i, pages[i]);
    call.paged.k.values().set_values(std::vector<double>(static_cast<size_t>(call.paged.k.elements()), 0.5));
    for (int64_t i = 0; i < 8 * 16; ++i) call.paged.k.set(i, std::nan(""));
    const TestTensor scores = call.scores(context());
    for (int64_t g = 0; g < 40; ++g) EXPECT_EQ(scores.get(g) == -kInf, g / 8 % 2 == 1) << g;
    const Ids ids = ids_of(call.select(context()));
    for (int32_t i = 0; i < 24; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], i / 8 * 16 + i % 8);
    EXPECT_EQ(ids[24], -1);
  }
}

TEST_P(QsaFaults, F40_ALayersViewIntoASharedPool) {
  const QsaIndex tight({.queries = 3, .keys = 40, .dim = 64, .page_size = 8}, TESSERA_BF16);
  const tessera_tensor& pages = tight.paged.k.view();                                  // [P, 1, 8, 64]
  const TestTensor pool(TESSERA_BF16, {pages.shape[0], 8, 64}, {8 * 64 + 24, 64, 1});  // 48 bytes more
  for (int64_t i = 0; i < pool.elements(); ++i) pool.values().set(i, tight.paged.k.get(i));
  const TestTensor got = tight.scores_tensor(), ids = tight.indices_tensor();
  auto args = tight.scores_args(got);
  auto select_args = tight.select_args(ids);
  args.index.k = select_args.index.k = pool;
  const tessera_context with = context();
  ASSERT_EQ(tessera_qsa_indexer_mqa_score(&args, &with), TESSERA_OK) << tessera_last_error();
  ASSERT_EQ(tessera_qsa_select(&select_args, &with), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(got.all_bits(), tight.scores(with).all_bits());
  EXPECT_EQ(ids.all_bits(), tight.select(with).all_bits());
}

// Guard pages lie behind the tensors, and what lies between rows is looked at.
TEST_P(QsaFaults, F41_StoresBeyondWhatIsVisible) {
  for (int64_t columns : {1, 5, 37, 40, 41, 47, 64}) {
    QsaIndex call({.queries = 7, .keys = 40, .layout = cases::Layout::kStrided}, TESSERA_BF16);
    call.shape.spare = columns - 40;
    for (int64_t t = 0; t < 7; ++t) call.positions.set(t, static_cast<double>(4 * 5 * t));
    EXPECT_TRUE(scores_within(call.scores(context()), call.expected_scores()));
  }
}

TEST_P(QsaRankFaults, F44_IndexKeysHaveATypeOfTheirOwn) {
  Ids lists[3];
  for (int i = 0; i < 3; ++i) {
    QsaIndex call({.queries = 9, .keys = 60}, kFloats[i]);
    Random random(1);
    for (int64_t e = 0; e < call.k.elements(); ++e) call.k.set(e, static_cast<double>(random.below(9) - 4));
    for (int64_t e = 0; e < call.q.elements(); ++e) call.q.set(e, static_cast<double>(random.below(9) - 4));
    lists[i] = ids_of(call.select(context()));
  }
  EXPECT_EQ(lists[0], lists[1]);
  EXPECT_EQ(lists[0], lists[2]);
}

TEST(QsaFaults, F46_NoWayRoundOnAPlainCpu) {
  const QsaIndex call({}, TESSERA_BF16);
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    const TestTensor to = call.indices_tensor();
    const auto args = call.select_args(to);
    const tessera_context with = with_variant(tessera_variant_name(i));
    const bool available = tessera_variant_available(i) != 0;
    EXPECT_EQ(tessera_qsa_select(&args, &with), available ? TESSERA_OK : TESSERA_NOT_IMPLEMENTED);
    if (available) continue;
    EXPECT_TRUE(names(tessera_last_error(), tessera_variant_name(i))) << tessera_last_error();
  }
}

}  // namespace
}  // namespace tessera::test
