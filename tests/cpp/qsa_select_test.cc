// QSA's selection: exact ranking on score distributions on which selections by buckets, by samples or by half precision
// go wrong. Scores are made of one feature per block, so that they are known exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lazy.h"
#include "qsa_index.h"

namespace tessera::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kRows = 3;  // see all blocks, all but one, half of them

// Block g of n, for a distribution of scores.
struct Distribution {
  const char* name;
  float (*score)(int64_t g, int64_t n, Random* random);
};

const Distribution kDistributions[] = {
    {"equal", [](int64_t, int64_t, Random*) { return 1.5f; }},
    {"zero", [](int64_t g, int64_t, Random*) { return g % 3 == 0 ? -0.0f : 0.0f; }},
    {"half_equal", [](int64_t g, int64_t, Random* r) { return g % 2 == 0 ? 1.0f : std::fabs(r->normal()); }},
    {"clusters",
     [](int64_t, int64_t, Random* r) {
       return static_cast<float>(1 + r->below(4)) * (1 + 1e-3f * static_cast<float>(r->below(1000)) / 1000);
     }},
    {"neighbours",  // distinct in f32 alone
     [](int64_t g, int64_t n, Random*) { return 1 + static_cast<float>(g * 7919 % n) * 0x1p-23f; }},
    {"one_bin",  // [1, 1.245)
     [](int64_t, int64_t, Random* r) { return 1 + 0.245f * static_cast<float>(r->below(1 << 20)) * 0x1p-20f; }},
    {"denormal", [](int64_t, int64_t, Random* r) { return static_cast<float>(r->below(1 << 12)) * 0x1p-149f; }},
    {"descending", [](int64_t g, int64_t n, Random*) { return static_cast<float>(n - g); }},
    {"ascending", [](int64_t g, int64_t, Random*) { return static_cast<float>(g + 1); }},
    {"nan", [](int64_t, int64_t, Random* r) { return r->below(10) < 6 ? std::nanf("") : std::fabs(r->normal()); }},
    {"mostly_nan", [](int64_t g, int64_t, Random*) { return g % 50 == 49 ? 1.0f : std::nanf(""); }},
    {"infinite",
     [](int64_t, int64_t, Random* r) { return r->chance(3)   ? float(kInfinity)
                                              : r->chance(3) ? 0.0f
                                                             : r->normal(); }},
    {"zeros_and_few", [](int64_t g, int64_t, Random*) { return g % 97 == 5 ? 0x1p-126f : 0.0f; }},
    {"huge", [](int64_t, int64_t, Random* r) { return 3e38f * static_cast<float>(r->below(1000)) / 1000; }},
};

// q has 1 in its first feature and k the score there, so that score[t, g] is what the distribution says, at scale 1.
QsaIndex with_scores(const Distribution& of, int64_t blocks, int64_t topk, int64_t page_size = 0) {
  QsaIndex call(
      {.queries = kRows, .keys = blocks, .heads = 1, .dim = 1, .page_size = page_size, .scale = 1, .topk = topk},
      TESSERA_F32);
  call.q.fill(1);
  Random random(static_cast<uint64_t>(blocks));
  for (int64_t g = 0; g < blocks; ++g) {
    call.key_memory().set(call.key_at(0, g), of.score(g, blocks, &random));
  }
  const int64_t seen[kRows] = {blocks, blocks - 1, blocks / 2};
  for (int64_t t = 0; t < kRows; ++t) call.positions.set(t, static_cast<double>(seen[t] * 4 - 1));
  return call;
}

class QsaDistribution : public testing::TestWithParam<Distribution> {};
INSTANTIATE_TEST_SUITE_P(Qsa, QsaDistribution, testing::ValuesIn(kDistributions),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(QsaDistribution, IsRankedExactly) {
  for (int64_t blocks : {1, 5, 64, 513, 1000, 4200}) {
    for (int64_t topk : {1, 4, 512, 2048}) {
      const QsaIndex call = with_scores(GetParam(), blocks, topk, blocks == 1000 ? 24 : 0);
      const std::vector<int32_t> want = call.expected_lists().ids;
      for_each_variant(TESSERA_F32, [&](const tessera_context& with) {
        EXPECT_EQ(ids_of(call.select(with)), want) << blocks << " blocks, top " << topk;
      });
    }
  }
}

TEST_P(QsaDistribution, ExpandsToTheSameBlocks) {
  const QsaIndex call = with_scores(GetParam(), 700, 512);
  for_each_variant(TESSERA_F32, [&](const tessera_context& with) {
    const std::vector<int32_t> ids = ids_of(call.select(with));
    EXPECT_EQ(ids_of(call.select_tokens(with)), reference::qsa_token_indices(call.select_args({}), ids));
  });
}

// ---- Ranks of computed scores --------------------------------------------------------------------------------------

// The best of the very bits that the scores have.
TEST(QsaSelect, AgreesWithTheScores) {
  const QsaCase calls[] = {
      {.requests = 2, .queries = 40, .keys = 700, .dim = 128, .topk = 64},
      {.requests = 3,
       .queries = 20,
       .keys = 1500,
       .rows = Rows::kPacked,
       .page_size = 24,
       .weights = true,
       .topk = 512},
      {.queries = 1, .keys = 6000, .topk = 512},
      {.requests = 2, .queries = 130, .keys = 300, .heads = 1, .dim = 8, .positions = Positions::kScattered, .topk = 7},
  };
  for (const QsaCase& c : calls) {
    for (tessera_dtype dtype : kFloats) {
      const QsaIndex call(c, dtype);
      for_each_variant(dtype, [&](const tessera_context& with) {
        const TestTensor scores = call.scores(with), ids = call.indices_tensor();
        EXPECT_EQ(ids_of(call.select(with)), reference::topk_blocks({scores, ids}).ids);
      });
    }
  }
}

// The ReLU makes many scores exactly 0: the first of them are taken, and rows of nothing else list the first blocks.
TEST(QsaSelect, TakesTheFirstOfTheZeros) {
  QsaIndex call({.queries = 2, .keys = 900, .topk = 600}, TESSERA_BF16);
  call.q.fill(1);
  call.k.fill(-1);
  for (int64_t g = 700; g < 710; ++g) call.k.set(call.key_at(0, g), 40);
  std::vector<int32_t> want;
  for (int32_t g = 0; g < 590; ++g) want.push_back(g);
  for (int32_t g = 700; g < 710; ++g) want.push_back(g);
  for_each_variant(TESSERA_BF16, [&](const tessera_context& with) {
    const std::vector<int32_t> ids = ids_of(call.select(with));
    EXPECT_TRUE(std::equal(want.begin(), want.end(), ids.begin() + 600));
  });
}

// With no more visible blocks than topk nothing is scored, so nothing can go wrong.
TEST(QsaSelect, ListsAllBlocksWhereNoMoreAreVisible) {
  QsaIndex call({.topk = 40}, TESSERA_F32);
  call.q.fill(std::nan(""));
  const std::vector<int32_t> want = call.expected_lists().ids;
  for_each_variant(TESSERA_F32, [&](const tessera_context& with) { EXPECT_EQ(ids_of(call.select(with)), want); });
}

// Wide rows of one feature: the needle is found wherever it lies.
TEST(QsaSelect, FindsANeedleAnywhere) {
  for (int64_t needle : {0, 1, 127, 128, 8191, 8192, 20000, 29999}) {
    QsaIndex call({.queries = 1, .keys = 30000, .heads = 1, .dim = 8, .topk = 1}, TESSERA_BF16);
    call.q.fill(1);
    call.k.fill(0.5);
    for (int64_t d = 0; d < 8; ++d) call.k.set(call.key_at(0, needle) + d, 2);
    for_each_variant(TESSERA_BF16, [&](const tessera_context& with) { EXPECT_EQ(call.select(with).get(0), needle); });
  }
}

// Rows whose best blocks get better and better, and worse and worse: a threshold kept from the row before would fail.
TEST(QsaSelect, RowsDoNotInheritThresholds) {
  for (const float growth : {2.0f, 0.5f}) {
    QsaIndex call({.queries = 24, .keys = 600, .heads = 1, .dim = 8, .topk = 32}, TESSERA_F32);
    Random random(5);
    float factor = 1;
    for (int64_t t = 0; t < 24; ++t, factor *= growth) {
      for (int64_t d = 0; d < 8; ++d) call.q.set(t * 8 + d, factor * random.normal());
    }
    expect_right(call);
  }
}

// A visible block of score -inf is preferred to one of score NaN, and both to none.
TEST(QsaSelect, TakesMinusInfinityBeforeNan) {
  for (int64_t topk : {2, 30, 45}) {
    QsaIndex call({.queries = 2, .keys = 60, .heads = 1, .dim = 1, .weights = true, .topk = topk}, TESSERA_F32);
    call.q.fill(1);
    call.weights.fill(-kInfinity);  // times 0 is NaN
    for (int64_t g = 0; g < 60; ++g) call.k.set(g, g % 3 == 2 ? 1 : -1);
    const std::vector<int32_t> want = call.expected_lists().ids;
    EXPECT_EQ(want[0], topk == 2 ? 2 : 0);
    for_each_variant(TESSERA_F32, [&](const tessera_context& with) { EXPECT_EQ(ids_of(call.select(with)), want); });
  }
}

// A matrix of scores would take 4 GiB.
TEST(QsaSelect, MemoryDoesNotGrowWithRowsTimesKeys) {
  const int64_t rows = 65536, keys = 16384, dim = 128;
  const Lazy q(static_cast<size_t>(rows * 4 * dim * 2)), k(static_cast<size_t>(keys * dim * 2));
  const Lazy ids(static_cast<size_t>(rows * 512 * 4));
  tessera_qsa_select_args args = {};
  args.index.q = dense(q, TESSERA_BF16, {1, rows, 4, dim});
  args.index.k = dense(k, TESSERA_BF16, {1, keys, dim});
  args.topk = 512;
  args.indices = dense(ids, TESSERA_I32, {1, rows, 512});
  for_each_variant(TESSERA_BF16, [&](tessera_context with) {
    for (int threads : {1, 8}) {
      with.executor = {TESSERA_EXECUTOR_THREADS, threads, 0, 0, nullptr, nullptr};
      size_t bytes = 0;
      ASSERT_EQ(tessera_qsa_select_workspace_size(&args, &with, &bytes), TESSERA_OK) << tessera_last_error();
      EXPECT_LT(bytes, size_t{200} << 20);
    }
  });
}

TEST(QsaSelect, WritesBothResultsAtOnce) {
  const QsaIndex call({.requests = 2, .rows = Rows::kBoth, .layout = cases::Layout::kStrided}, TESSERA_BF16);
  for_each_variant(TESSERA_BF16, [&](const tessera_context& with) {
    const TestTensor ids = call.indices_tensor(), tokens = call.tokens_tensor();
    const auto args = call.select_args(ids, tokens);
    ASSERT_EQ(tessera_qsa_select(&args, &with), TESSERA_OK) << tessera_last_error();
    EXPECT_EQ(ids.all_bits(), call.select(with).all_bits());
    EXPECT_EQ(tokens.all_bits(), call.select_tokens(with).all_bits());
    expect_clean(ids, "indices");
    expect_clean(tokens, "token_indices");
  });
}

}  // namespace
}  // namespace tessera::test
