// The oracle's indexer against scores and lists worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "by_hand.h"
#include "reference/reference.h"

namespace tessera::test {
namespace {

using Ids = std::vector<int32_t>;

// One feature: scores are products. Two index heads share seven keys; blocks of two.
struct TinyIndex {
  TestTensor q = f32({1, 1, 2, 1}, {1, -1});
  TestTensor k = f32({1, 7, 1, 1}, {0, 1, 9, 7, 2, 4, 5});
  tessera_sequences sequences = {};
  bool reduce = false;
  int64_t topk = 2, local = 0, init = 0;

  tessera_msa_index index() const { return {q, k, sequences, 2, reduce ? 1 : 0}; }
  reference::BlockScores scores(const Shape& shape) const {
    return reference::msa_block_scores({index(), TestTensor(TESSERA_F32, shape)});
  }
  reference::Selection lists() const { return reference::msa_select({index(), topk, local, init, {}}); }
};

TEST(ReferenceMsaIndex, TakesTheMaximumOfEachBlock) {
  const TinyIndex call;
  const reference::BlockScores got = call.scores({1, 2, 1, 4});
  expect_near(got.score, {1, 9, 4, 5, 0, -7, -2, -5});
  expect_near(got.magnitude, {1, 9, 4, 5, 1, 9, 4, 5});
  expect_near(call.scores({1, 2, 1, 2}).score, {1, 9, 0, -7});
  expect_near(call.scores({1, 2, 1, 5}).score, {1, 9, 4, 5, -kInf, 0, -7, -2, -5, -kInf});
  EXPECT_EQ(call.lists().ids, (Ids{1, 3, 0, 2}));
}

TEST(ReferenceMsaIndex, ReducesHeadsIfAsked) {
  TinyIndex call;
  call.reduce = true;
  expect_near(call.scores({1, 1, 1, 4}).score, {1, 9, 4, 5});
  call.k = f32({1, 3, 1, 1}, {-8, 0, 3});
  expect_near(call.scores({1, 1, 1, 2}).score, {8, 3});
}

TEST(ReferenceMsaIndex, SeesKeysUpToThePosition) {
  TinyIndex call;
  const TestTensor offset = i32({1}, {3});
  call.sequences.q_offset = offset;
  expect_near(call.scores({1, 2, 1, 4}).score, {1, 9, -kInf, -kInf, 0, -7, -kInf, -kInf});
  const TestTensor before = i32({1}, {-1});
  call.sequences.q_offset = before;
  EXPECT_EQ(call.lists().ids, (Ids{-1, -1, -1, -1}));
}

TEST(ReferenceMsaIndex, ForcesBlocks) {
  TinyIndex call;
  call.local = 1;
  call.init = 1;
  EXPECT_EQ(call.lists().ids, (Ids{0, 3, 0, 3}));
  call.topk = 3;
  EXPECT_EQ(call.lists().ids, (Ids{0, 1, 3, 0, 2, 3}));
}

TEST(ReferenceMsaIndex, HasAKeyHeadForEachHeadOrOneForAll) {
  TinyIndex call;
  call.q = f32({1, 1, 2, 1}, {1, 1});
  call.k = f32({1, 2, 2, 1}, {1, 5, 2, 3});
  expect_near(call.scores({1, 2, 1, 1}).score, {2, 5});
}

TEST(ReferenceMsaIndex, PacksRowsAndKeys) {
  TinyIndex call;
  call.q = f32({4, 1, 1}, {1, 1, 1, 1});
  call.k = f32({5, 1, 1}, {1, 2, 3, 4, 5});
  const TestTensor cu_q = i32({3}, {0, 1, 3}), cu_k = i32({3}, {0, 3, 5});
  call.sequences.cu_seqlens_q = cu_q;
  call.sequences.cu_seqlens_k = cu_k;
  // Request 0: keys 1 2 3. Request 1: two rows, keys 4 5. Row 3 belongs to none.
  expect_near(call.scores({1, 4, 2}).score, {2, 3, 4, -kInf, 5, -kInf, -kInf, -kInf});
  EXPECT_EQ(call.lists().ids, (Ids{0, 1, 0, -1, 0, -1, -1, -1}));
}

TEST(ReferenceMsaIndex, ReadsPages) {
  TinyIndex call;
  call.q = f32({1, 1, 1}, {1});
  call.k = f32({3, 1, 2, 1}, {8, 9, 1, 2, 5, 7});
  const TestTensor cu_q = i32({2}, {0, 1}), table = i32({1, 3}, {2, -1, 1}), used = i32({1}, {5});
  call.sequences.cu_seqlens_q = cu_q;
  call.sequences.page_table = table;
  call.sequences.seqused_k = used;
  expect_near(call.scores({1, 1, 3}).score, {7, -kInf, 1});
  EXPECT_EQ(call.lists().ids, (Ids{0, 2}));
}

TEST(ReferenceMsaIndex, KeepsNan) {
  TinyIndex call;
  call.k = f32({1, 4, 1, 1}, {std::nan(""), 1, 2, std::nan("")});
  const std::vector<double> scores = call.scores({1, 2, 1, 2}).score;
  for (double s : scores) EXPECT_TRUE(std::isnan(s));
}

}  // namespace
}  // namespace tessera::test
