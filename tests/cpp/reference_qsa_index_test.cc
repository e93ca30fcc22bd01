// The oracle's QSA indexer against scores, lists and tokens worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "by_hand.h"
#include "reference/reference.h"

namespace tessera::test {
namespace {

using Ids = std::vector<int32_t>;

// One feature: scores are products. Two heads share five keys, each of two tokens; scale 2.
struct TinyQsa {
  TestTensor q = f32({2, 1, 2, 1}, {1, -1, 3, 1});  // a row in each of two requests
  TestTensor k = f32({2, 5, 1}, {4, -2, 0, 1, 9, 1, 2, 3, 4, 5});
  TestTensor positions = i32({2, 1}, {9, 7});
  float scale = 2;
  tessera_qsa_index index = {q, k, {}, &scale, 2, {}, {}, positions, {}, {}, {}};

  std::vector<double> scores(const Shape& shape) const {
    return reference::qsa_indexer_mqa_score({index, TestTensor(TESSERA_F32, shape)}).score;
  }
  Ids ids(int64_t topk) const { return reference::qsa_select({index, topk, {}, {}, {}, {}}).ids; }
  Ids tokens(int64_t topk) const { return reference::qsa_token_indices({index, topk, {}, {}, {}, {}}, ids(topk)); }
};

TEST(ReferenceQsaIndex, SumsWhatIsPositive) {
  TinyQsa call;
  expect_near(call.scores({2, 1, 5}), {8, 4, 0, 2, 18, 8, 16, 24, 32, -kInf});
  expect_near(call.scores({2, 1, 2}), {8, 4, 8, 16});
  expect_near(reference::qsa_indexer_mqa_score({call.index, TestTensor(TESSERA_F32, {2, 1, 5})}).magnitude,
              {16, 8, 0, 4, 36, 8, 16, 24, 32, 0});
  const TestTensor weights = f32({2, 1, 2}, {1, -3, 0, 0.5});
  call.index.weights = weights;
  expect_near(call.scores({2, 1, 2}), {8, -12, 1, 2});
  call.index.scale = nullptr;
  expect_near(call.scores({2, 1, 2}), {4, -6, 0.5, 1});
}

TEST(ReferenceQsaIndex, SeesCompleteBlocksUpToThePosition) {
  TinyQsa call;
  for (const auto& [first, second] : {std::pair{0, 3}, std::pair{1, 4}, std::pair{-1, 2}, std::pair{2, 1 << 30}}) {
    const TestTensor positions = i32({2, 1}, {double(first), double(second)});
    call.index.query_positions = positions;
    const std::vector<double> got = call.scores({2, 1, 5});
    for (int g = 0; g < 5; ++g) {
      EXPECT_EQ(got[static_cast<size_t>(g)] != -kInf, 2 * g + 1 <= first);
      EXPECT_EQ(got[static_cast<size_t>(5 + g)] != -kInf, 2 * g + 1 <= second);
    }
  }
}

TEST(ReferenceQsaIndex, SelectsAndExpands) {
  TinyQsa call;
  EXPECT_EQ(call.ids(2), (Ids{0, 4, 2, 3}));
  EXPECT_EQ(call.tokens(2), (Ids{0, 1, 8, 9, -1, 4, 5, 6, 7, -1}));
  const TestTensor positions = i32({2, 1}, {8, 2});
  call.index.query_positions = positions;
  EXPECT_EQ(call.ids(3), (Ids{0, 1, 3, 0, -1, -1}));
  EXPECT_EQ(call.tokens(3), (Ids{0, 1, 2, 3, 6, 7, 8, 0, 1, 2, -1, -1, -1, -1}));
  const TestTensor lens_k = i32({2}, {3, 0}), lens_q = i32({2}, {1, 1});
  call.index.seq_lens_k = lens_k;
  EXPECT_EQ(call.tokens(3), (Ids{0, 1, 2, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  const TestTensor none = i32({2}, {0, -4});
  call.index.seq_lens_q = none;
  EXPECT_EQ(call.ids(1), (Ids{-1, -1}));
}

TEST(ReferenceQsaIndex, PlacesPackedRows) {
  TinyQsa call;
  const TestTensor q = f32({4, 2, 1}, {1, 0, 1, 0, 1, 0, 1, 0});
  call.index.q = q;
  call.index.query_positions = {};
  call.index.block_size = 1;
  const auto visible = [&] {
    std::vector<int> all;
    const std::vector<double> got = call.scores({4, 5});
    for (size_t t = 0; t < 4; ++t) {
      all.push_back(static_cast<int>(5 - std::count(got.begin() + t * 5, got.begin() + t * 5 + 5, -kInf)));
      // The first key of the first request is 4, that of the second 1.
      if (all.back() > 0 && got[t * 5] == 2) all.back() *= -1;
    }
    return all;
  };
  const TestTensor cu = i32({3}, {0, 1, 3}), map = i32({4}, {1, 0, 1, 7}), broken = i32({3}, {2, 1, 4});
  call.index.cu_seqlens_q = cu;
  EXPECT_EQ(visible(), (std::vector<int>{1, -1, -2, 0}));
  call.index.cu_seqlens_q = broken;
  EXPECT_EQ(visible(), (std::vector<int>{0, -1, -2, -3}));
  call.index.cu_seqlens_q = {};
  call.index.token_to_req = map;
  EXPECT_EQ(visible(), (std::vector<int>{-1, 1, -2, 0}));
}

TEST(ReferenceQsaIndex, KeysLieInPages) {
  TinyQsa call;
  const TestTensor pages = f32({3, 2, 1}, {9, 9, 1, 2, 3, 4});
  const TestTensor table = i32({2, 3}, {1, 2, -1, 3, 2, 1});
  call.index.k = pages;
  call.index.page_table = table;
  const TestTensor positions = i32({2, 1}, {100, 100});
  call.index.query_positions = positions;
  expect_near(call.scores({2, 1, 7}), {2, 4, 6, 8, -kInf, -kInf, -kInf, -kInf, -kInf, 24, 32, 8, 16, -kInf});
  EXPECT_EQ(call.ids(5), (Ids{0, 1, 2, 3, -1, 2, 3, 4, 5, -1}));
}

TEST(ReferenceQsaIndex, RowsSeeIntervals) {
  const TestTensor q = f32({3, 1, 1}, {1, 1, -1}), k = f32({4, 1}, {1, 2, 3, 4});
  const TestTensor starts = i32({3}, {1, -5, 3}), ends = i32({3}, {3, 1, 99});
  const TestTensor scores(TESSERA_F32, {3, 4});
  expect_near(reference::qsa_mqa_prefill({q, k, starts, ends, {}, nullptr, scores}).score,
              {-kInf, 2, 3, -kInf, 1, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf, 0});
}

TEST(ReferenceQsaIndex, DecodesWithCounts) {
  const TestTensor q = f32({2, 2, 1, 1}, {1, 2, 3, 4}), cache = f32({2, 2, 1, 1}, {1, 2, 3, 4});
  const TestTensor table = i32({2, 2}, {1, 0, 0, 5}), lens = i32({2}, {3, 3}), each = i32({2, 2}, {1, 2, 0, -1});
  const TestTensor scores(TESSERA_F32, {4, 4});
  tessera_qsa_mqa_decode_args args = {q, cache, table, lens, {}, nullptr, scores};
  expect_near(reference::qsa_mqa_decode(args).score,
              {3, 4, 1, -kInf, 6, 8, 2, -kInf, 3, 6, -kInf, -kInf, 4, 8, -kInf, -kInf});
  args.context_lens = each;
  expect_near(reference::qsa_mqa_decode(args).score,
              {3, -kInf, -kInf, -kInf, 6, 8, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf});
}

TEST(ReferenceTopkBlocks, RanksNanLastAndLeavesOutTheInvisible) {
  const TestTensor scores = f32({2, 5}, {std::nan(""), 1, -kInf, 0, -0.0, 2, 2, 2, kInf, std::nan("")});
  const auto ids = [&](int64_t k) { return reference::topk_blocks({scores, TestTensor(TESSERA_I32, {2, k})}).ids; };
  EXPECT_EQ(ids(2), (Ids{1, 3, 0, 3}));
  EXPECT_EQ(ids(4), (Ids{0, 1, 3, 4, 0, 1, 2, 3}));
  EXPECT_EQ(ids(6), (Ids{0, 1, 3, 4, -1, -1, 0, 1, 2, 3, 4, -1}));
}

}  // namespace
}  // namespace tessera::test
