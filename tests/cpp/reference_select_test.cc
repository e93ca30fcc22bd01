// The oracle's selectors against lists worked out by hand, and the comparison that forgives near ties.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "by_hand.h"
#include "reference/reference.h"
#include "selection.h"

namespace tessera::test {
namespace {

struct TinySelect {
  TestTensor q = f32({1, 1, 1, 1}, {1});
  TestTensor k = f32({1, 7, 1, 1}, {0, 1, 9, 7, 2, 4, 5});  // means of blocks of 2: 0.5, 8, 3, 5
  TestTensor q_offset;
  int64_t topk = 2, block = 2, block_q = 1, local = 0, init = 0, stride = 1;

  template <class SelectArgs>
  SelectArgs args() const {
    SelectArgs a = {};
    a.q = q;
    a.k = k;
    a.topk = topk;
    a.block_size = block;
    a.block_q = block_q;
    a.local_blocks = local;
    a.init_blocks = init;
    a.q_offset = q_offset;
    return a;
  }
  reference::Selection moba() const { return reference::moba_select(args<tessera_moba_select_args>()); }
  reference::Selection mass(float scale = 1) const {
    auto a = args<tessera_mass_select_args>();
    a.stride = stride;
    a.softmax_scale = &scale;
    return reference::mass_select(a);
  }
};
using Ids = std::vector<int32_t>;

TEST(ReferenceSelect, MobaScoresByTheMeanKey) {
  const TinySelect call;
  const reference::Selection got = call.moba();
  expect_near(got.score, {0.5, 8, 3, 5});
  expect_near(got.magnitude, {0.5, 8, 3, 5});
  EXPECT_EQ(got.ids, (Ids{1, 3}));
}

TEST(ReferenceSelect, ForcesLocalAndInitialBlocks) {
  TinySelect call;
  call.local = 1;
  EXPECT_EQ(call.moba().ids, (Ids{1, 3}));
  call.local = 2;
  EXPECT_EQ(call.moba().ids, (Ids{2, 3}));
  call.local = 1;
  call.init = 1;
  EXPECT_EQ(call.moba().ids, (Ids{0, 3}));
  call.topk = 3;
  EXPECT_EQ(call.moba().ids, (Ids{0, 1, 3}));
  call.topk = 6;
  EXPECT_EQ(call.moba().ids, (Ids{0, 1, 2, 3, -1, -1}));
}

TEST(ReferenceSelect, SeesOnlyBlocksThatBegin) {
  TinySelect call;
  call.topk = 4;
  call.q_offset = i32({1}, {3});
  EXPECT_EQ(call.moba().ids, (Ids{0, 1, -1, -1}));
  call.q_offset = i32({1}, {4});
  EXPECT_EQ(call.moba().ids, (Ids{0, 1, 2, -1}));
  call.q_offset = i32({1}, {-1});
  EXPECT_EQ(call.moba().ids, (Ids{-1, -1, -1, -1}));
  call.q_offset = i32({1}, {100});
  call.local = 3;
  EXPECT_EQ(call.moba().ids, (Ids{0, 1, 2, 3}));
  call.topk = 3;
  EXPECT_EQ(call.moba().ids, (Ids{1, 2, 3}));
  call.q_offset = i32({1}, {8});  // the blocks up to its own are 2, 3 and 4, which does not exist
  call.topk = 2;
  EXPECT_EQ(call.moba().ids, (Ids{2, 3}));
}

TEST(ReferenceSelect, PrefersOwnBlocksOfEveryRow) {
  TinySelect call;
  call.q = f32({1, 4, 1, 1}, {1, 1, 1, 1});  // positions 3 to 6, blocks 1, 2, 2, 3
  call.k = f32({1, 7, 1, 1}, {9, 9, 0, 0, 1, 1, 2});
  call.block_q = 4;
  EXPECT_EQ(call.moba().ids, (Ids{0, 3}));
  call.local = 1;
  EXPECT_EQ(call.moba().ids, (Ids{2, 3}));
  call.topk = 3;
  EXPECT_EQ(call.moba().ids, (Ids{1, 2, 3}));
  EXPECT_EQ(call.moba().tier,
            (std::vector<reference::Tier>{reference::kByScore, reference::kOwn, reference::kOwn, reference::kForced}));
}

TEST(ReferenceSelect, AveragesRowsWithAPositionAndHeads) {
  TinySelect call;
  call.q = f32({1, 2, 2, 1}, {100, 100, 1, 3});
  call.k = f32({1, 1, 1, 1}, {5});
  call.block_q = 2;
  expect_near(call.moba().score, {10});  // the first row stands before the first key
}

TEST(ReferenceSelect, BreaksTiesByIdAndPutsNanLast) {
  TinySelect call;
  call.k = f32({1, 7, 1, 1}, {-0.0, -0.0, 0, 0, std::nan(""), 0, 0});
  EXPECT_EQ(call.moba().ids, (Ids{0, 1}));
  call.topk = 3;
  EXPECT_EQ(call.moba().ids, (Ids{0, 1, 3}));
  call.k = f32({1, 7, 1, 1}, {std::nan(""), 0, std::nan(""), 0, std::nan(""), 0, -9});
  EXPECT_EQ(call.moba().ids, (Ids{0, 1, 3}));
}

TEST(ReferenceSelect, SelectsForEachKvHead) {
  TinySelect call;
  call.q = f32({1, 1, 2, 1}, {1, -1});
  call.k = f32({1, 3, 2, 1}, {1, 1, 2, 2, 3, 3});
  call.block = 1;
  call.topk = 1;
  EXPECT_EQ(call.moba().ids, (Ids{2, 0}));
}

TEST(ReferenceSelect, MassAddsProbabilities) {
  TinySelect call;
  call.k = f32({1, 4, 1, 1}, {0, kLog2, 0, 2 * kLog2});  // weights 1, 2, 1, 4
  expect_near(call.mass().score, {3.0 / 8, 5.0 / 8});
  expect_near(call.mass(0).score, {0.5, 0.5});
  call.q = f32({1, 2, 1, 1}, {0, 1});
  call.block_q = 2;
  expect_near(call.mass().score, {2.0 / 3 + 3.0 / 8, 1.0 / 3 + 5.0 / 8});
  call.q_offset = i32({1}, {-1});
  expect_near(call.mass().score, {1, -kInf});
}

TEST(ReferenceSelect, MassSamplesEveryStrideAndTheLastRow) {
  TinySelect call;
  call.q = f32({1, 6, 1, 1}, {0, 0, 0, 0, 0, 0});
  call.k = f32({1, 1, 1, 1}, {0});
  call.q_offset = i32({1}, {0});
  call.block_q = 6;
  call.stride = 2;
  expect_near(call.mass().score, {4});  // rows 0, 2, 4 and 5
  call.stride = 5;
  expect_near(call.mass().score, {2});  // rows 0 and 5, which is the last: once
  call.stride = 100;
  expect_near(call.mass().score, {2});
}

TEST(ReferenceSelect, WritesIndices) {
  const TinySelect call;
  const TestTensor indices(TESSERA_I32, {1, 1, 1, 2});
  auto moba = call.args<tessera_moba_select_args>();
  moba.indices = indices;
  ASSERT_TRUE(reference_moba_select(moba).ok());
  EXPECT_TRUE(selection_within(indices, call.moba()));
  EXPECT_EQ(indices.get(1), 3);
  auto mass = call.args<tessera_mass_select_args>();
  mass.indices = indices;
  ASSERT_TRUE(reference_mass_select(mass).ok());
  EXPECT_EQ(indices.get(0), 1);
  EXPECT_EQ(indices.get(1), 3);
}

TEST(SelectionWithin, ForgivesOnlyWhatIsTooClose) {
  TinySelect call;
  call.k = f32({1, 7, 1, 1}, {1, 1, 5, 5, 1.0001, 1.0001, 9});
  const reference::Selection want = call.moba();
  TestTensor indices = i32({1, 1, 1, 2}, {1, 3});
  EXPECT_TRUE(selection_within(indices, want));
  indices.set(0, 0);
  EXPECT_FALSE(selection_within(indices, want));
  indices.set(0, 3);
  EXPECT_FALSE(selection_within(indices, want));  // twice
  call.topk = 3;
  EXPECT_TRUE(selection_within(i32({1, 1, 1, 3}, {1, 2, 3}), call.moba()));
  EXPECT_TRUE(selection_within(i32({1, 1, 1, 3}, {0, 1, 3}), call.moba()));  // 1 and 1.0001
  EXPECT_FALSE(selection_within(i32({1, 1, 1, 3}, {1, 3, -1}), call.moba()));
  EXPECT_FALSE(selection_within(i32({1, 1, 1, 3}, {0, 1, 2}), call.moba()));
}

}  // namespace
}  // namespace tessera::test
