// Corners of cp_merge and merge_states: ranks, scalars, strides, single partials bit for bit, many shards, non-finite
// numbers, views that interleave, the workspace and the variant of the context.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "bounds.h"
#include "merge_variants.h"
#include "tensors.h"

namespace tessera::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

// Partials of merge_states with the results' tensors.
struct Partials {
  std::vector<TestTensor> o, lse;
  TestTensor out, out_lse;

  Partials(int64_t count, const Shape& leading, int64_t dim, tessera_dtype dtype = TESSERA_F32) {
    Shape full = leading;
    full.push_back(dim);
    Random random(31);
    for (int64_t i = 0; i < count; ++i) {
      o.emplace_back(dtype, full).fill_normal(random);
      lse.emplace_back(TESSERA_F32, leading).fill_normal(random);
    }
    out = TestTensor(dtype, full);
    out_lse = TestTensor(TESSERA_F32, leading);
  }

  void run(const tessera_context& context) const {
    const std::vector<tessera_tensor> o_views(o.begin(), o.end()), lse_views(lse.begin(), lse.end());
    const tessera_merge_states_args a = {o_views.data(), lse_views.data(), static_cast<int64_t>(o.size()), out,
                                         out_lse};
    ASSERT_EQ(tessera_merge_states(&a, &context), TESSERA_OK) << tessera_last_error();
    ASSERT_TRUE(out.all_written());
    ASSERT_TRUE(out_lse.all_written());
  }

  void expect_near_oracle() const {
    const std::vector<tessera_tensor> o_views(o.begin(), o.end()), lse_views(lse.begin(), lse.end());
    const tessera_merge_states_args a = {o_views.data(), lse_views.data(), static_cast<int64_t>(o.size()), out,
                                         out_lse};
    const reference::Merge want = reference::merge_states(a);
    EXPECT_TRUE(out_within(out, TESSERA_F32, want.out, want.spread));
    for (int64_t i = 0; i < out_lse.elements(); ++i)
      EXPECT_NEAR(out_lse.get(i), want.lse[static_cast<size_t>(i)], 1e-5);
  }
};

class MergeEdge : public WithMergeVariant {};
INSTANTIATE_TEST_SUITE_P(, MergeEdge, testing::ValuesIn(merge_variants()), [](const auto& test) { return test.param; });

TEST_P(MergeEdge, EveryRank) {
  const Shape leading = {2, 3, 2, 5};
  for (size_t rank = 1; rank <= 5; ++rank) {
    SCOPED_TRACE(rank);
    const Partials x(3, Shape(leading.begin(), leading.begin() + static_cast<int64_t>(rank) - 1), 24);
    x.run(chosen);
    x.expect_near_oracle();
  }
}

TEST_P(MergeEdge, ScalarsOfRankOneAreChecked) {
  Partials x(2, {}, 8);
  std::vector<tessera_tensor> o(x.o.begin(), x.o.end()), lse(x.lse.begin(), x.lse.end());
  tessera_merge_states_args a = {o.data(), lse.data(), 2, x.out, x.out_lse};
  const auto refuse = [&](const char* text) {
    EXPECT_EQ(tessera_merge_states(&a, &chosen), TESSERA_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(tessera_last_error(), text), nullptr) << tessera_last_error();
    EXPECT_TRUE(x.out.untouched());
  };
  lse[1] = {};
  refuse("partials[1] lse");
  lse[1] = x.lse[1];
  lse[1].ndim = 1;
  lse[1].shape[0] = 1;
  refuse("partials[1] lse has 1 axes");
  lse[1] = x.lse[1];
  a.lse = x.lse[0];
  refuse("lse overlaps partials[0] lse");
  a.lse = x.out_lse;
  EXPECT_EQ(tessera_merge_states(&a, &chosen), TESSERA_OK) << tessera_last_error();
}

// A signalling NaN, both zeros, subnormals and infinity: arithmetic would not keep all of them.
TEST_P(MergeEdge, ASingleLivePartialIsCopiedBitForBit) {
  for (tessera_dtype dtype : kFloats) {
    for (const size_t live : {0u, 1u, 2u}) {
      Partials x(3, {2}, 6, dtype);
      for (size_t i = 0; i < 3; ++i) {
        if (i == live) continue;
        x.lse[i].fill(-kInf);
        x.o[i].fill(kNan);
      }
      const uint32_t wide[] = {0x7f800001u, 0x80000000u, 1, 0xff800000u}, narrow[] = {0x7f81u, 0x8000u, 1, 0xfc00u};
      auto* const data = static_cast<std::byte*>(x.o[live].view().data);
      for (size_t j = 0; j < 4; ++j) {
        if (dtype == TESSERA_F32) std::memcpy(data + 4 * j, &wide[j], 4);
        if (dtype != TESSERA_F32) std::memcpy(data + 2 * j, &narrow[j], 2);
      }
      x.run(chosen);
      EXPECT_EQ(x.out.all_bits(), x.o[live].all_bits());
      EXPECT_EQ(x.out_lse.all_bits(), x.lse[live].all_bits());
    }
  }
}

TEST_P(MergeEdge, ManyEqualShards) {
  for (const int64_t count : {31, 32, 33, 64, 65, 1000}) {
    Partials x(count, {3}, 40);
    for (TestTensor& lse : x.lse) lse.fill(0.1);
    for (TestTensor& o : x.o) o.fill(1.1);
    x.run(chosen);
    x.expect_near_oracle();
  }
}

TEST_P(MergeEdge, EmptyShardsDoNotMoveGroupBoundaries) {
  Partials x(70, {2}, 300);
  x.run(chosen);
  const auto out = x.out.all_bits(), lse = x.out_lse.all_bits();
  TestTensor empty_o(TESSERA_F32, {2, 300}), empty_lse(TESSERA_F32, {2});
  empty_o.fill(kNan);
  empty_lse.fill(-kInf);
  for (const int64_t at : {70, 50, 32, 31, 1, 0}) {
    x.o.insert(x.o.begin() + at, empty_o);
    x.lse.insert(x.lse.begin() + at, empty_lse);
  }
  x.run(chosen);
  EXPECT_EQ(x.out.all_bits(), out);
  EXPECT_EQ(x.out_lse.all_bits(), lse);
}

TEST_P(MergeEdge, DimsAroundTheChunks) {
  for (const int64_t dim : {1, 3, 4, 15, 16, 17, 255, 256, 257, 511, 512, 600}) {
    for (tessera_dtype dtype : kFloats) {
      const Partials x(3, {5}, dim, dtype);
      x.run(chosen);
      x.expect_near_oracle();
    }
  }
}

TEST_P(MergeEdge, NonFiniteNumbersStayInTheirRow) {
  Partials x(3, {6}, 8);
  for (TestTensor& lse : x.lse) lse.fill(0);
  x.run(chosen);
  const auto want = x.out.all_bits();
  x.o[1].set(8, kInf);    // row 1: one element
  x.lse[2].set(2, kNan);  // row 2
  x.lse[0].set(3, kInf);  // row 3: two of the largest possible weights
  x.lse[1].set(3, kInf);
  x.lse[1].set(4, -1000);  // row 4: its weight vanishes, the shard does not
  x.o[1].set(4 * 8, kNan);
  x.run(chosen);
  for (int64_t i = 0; i < 48; ++i) {
    const int64_t row = i / 8, j = i % 8;
    SCOPED_TRACE(i);
    if (row == 1 && j == 0) {
      EXPECT_EQ(x.out.get(i), kInf);
    } else if (row == 2 || row == 3 || (row == 4 && j == 0)) {
      EXPECT_TRUE(std::isnan(x.out.get(i)));
    } else if (row != 4) {
      EXPECT_EQ(x.out.bits(i), want[static_cast<size_t>(i)]);
    }
  }
  EXPECT_TRUE(std::isnan(x.out_lse.get(2)));
  EXPECT_TRUE(std::isnan(x.out_lse.get(3)));
}

TEST_P(MergeEdge, LargeLsesDoNotOverflow) {
  Partials x(2, {4}, 8);
  for (int64_t row = 0; row < 4; ++row) {
    const double level[] = {1e30, -1e30, 3e38, -3e38};
    x.lse[0].set(row, level[row]);
    x.lse[1].set(row, level[row]);
  }
  x.run(chosen);
  for (int64_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(x.out.get(i), 0.5 * (x.o[0].get(i) + x.o[1].get(i)), 1e-6);
    EXPECT_EQ(x.out_lse.get(i / 8), x.lse[0].get(i / 8));
  }
}

TEST_P(MergeEdge, LengthsOfCpMergeMayBeTinyOrHuge) {
  const Shape rows = {4};
  TestTensor o(TESSERA_F32, {4, 8}), l(TESSERA_F32, rows), m(TESSERA_F32, rows), out(TESSERA_F32, {4, 8});
  o.fill(0x1p-130);
  const double lengths[] = {0x1p-130, 1, 0x1p100, 0x1p-140};
  for (int64_t row = 0; row < 4; ++row) l.set(row, lengths[row]);
  m.fill(3);
  const tessera_tensor views[] = {o, l, m};
  const tessera_cp_merge_args a = {&views[0], &views[1], &views[2], 1, out};
  ASSERT_EQ(tessera_cp_merge(&a, &chosen), TESSERA_OK) << tessera_last_error();
  for (int64_t i = 0; i < 32; ++i)
    EXPECT_EQ(out.get(i), 0x1p-130 / lengths[i / 8] < 0x1p-149 ? 0 : 0x1p-130 / lengths[i / 8]);
}

TEST_P(MergeEdge, BroadcastInputs) {
  Partials x(2, {3, 4}, 16), y = x;
  x.o[1] = TestTensor(TESSERA_F32, {1, 4, 16});
  Random random(5);
  x.o[1].fill_normal(random);
  y.o[1] = TestTensor(TESSERA_F32, {3, 4, 16});
  for (int64_t i = 0; i < y.o[1].elements(); ++i) y.o[1].set(i, x.o[1].get(i % 64));
  tessera_tensor view = x.o[1];
  view.shape[0] = 3;
  view.stride[0] = 0;
  const tessera_tensor o[] = {x.o[0], view}, lse[] = {x.lse[0], x.lse[1]};
  const tessera_merge_states_args a = {o, lse, 2, x.out, x.out_lse};
  ASSERT_EQ(tessera_merge_states(&a, &chosen), TESSERA_OK) << tessera_last_error();
  const auto got = x.out.all_bits();
  y.run(chosen);
  EXPECT_EQ(got, y.out.all_bits());
}

// out lies in the same buffer as the partials, between their rows.
TEST_P(MergeEdge, OutputsMayInterleaveWithInputs) {
  const Partials x(2, {5}, 8);
  x.run(chosen);
  TestTensor buffer(TESSERA_F32, {5, 3, 8});
  std::vector<tessera_tensor> part(3, buffer);
  for (size_t i = 0; i < 3; ++i) {
    part[i].ndim = 2;
    part[i].shape[1] = 8;
    part[i].stride[1] = 1;
    part[i].data = static_cast<float*>(buffer.view().data) + 8 * i;
    if (i == 2) continue;
    for (int64_t j = 0; j < 40; ++j) reference::View(part[i]).set(j, x.o[i].get(j));
  }
  const tessera_tensor lse[] = {x.lse[0], x.lse[1]};
  tessera_merge_states_args a = {part.data(), lse, 2, part[2], x.out_lse};
  ASSERT_EQ(tessera_merge_states(&a, &chosen), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(reference::View(part[2]).values(), x.out.values().values());
  a.out.data = static_cast<float*>(a.out.data) - 1;
  EXPECT_EQ(tessera_merge_states(&a, &chosen), TESSERA_INVALID_ARGUMENT);
}

TEST_P(MergeEdge, ContextIsHonoured) {
  const Partials x(2, {700}, 128);
  alignas(64) std::byte too_small_for_anything[64];
  chosen.workspace = too_small_for_anything;  // merges need none
  chosen.workspace_bytes = sizeof(too_small_for_anything);
  x.run(chosen);
  x.expect_near_oracle();
  chosen.executor.kind = TESSERA_EXECUTOR_THREADS;
  const std::vector<tessera_tensor> o(x.o.begin(), x.o.end()), lse(x.lse.begin(), x.lse.end());
  const tessera_merge_states_args a = {o.data(), lse.data(), 2, x.out, x.out_lse};
  EXPECT_EQ(tessera_merge_states(&a, &chosen), TESSERA_INVALID_ARGUMENT);
}

TEST(MergeVariants, OthersAreRefused) {
  const Partials x(2, {7}, 16);
  const std::vector<tessera_tensor> o(x.o.begin(), x.o.end()), lse(x.lse.begin(), x.lse.end());
  const tessera_merge_states_args a = {o.data(), lse.data(), 2, x.out, x.out_lse};
  const std::vector<std::string> there = merge_variants();
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    tessera_context context = {};
    context.variant = tessera_variant_name(i);
    if (std::find(there.begin(), there.end(), context.variant) != there.end()) continue;
    EXPECT_EQ(tessera_merge_states(&a, &context), TESSERA_NOT_IMPLEMENTED);
    EXPECT_TRUE(x.out.untouched());
  }
}

TEST_P(MergeEdge, NoRowsAndNoFeatures) {
  const Partials none(2, {0, 3}, 16);
  none.run(chosen);
  const Partials featureless(2, {3}, 0);
  const std::vector<tessera_tensor> o(featureless.o.begin(), featureless.o.end());
  const std::vector<tessera_tensor> lse(featureless.lse.begin(), featureless.lse.end());
  const tessera_merge_states_args a = {o.data(), lse.data(), 2, featureless.out, featureless.out_lse};
  EXPECT_EQ(tessera_merge_states(&a, &chosen), TESSERA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessera_last_error(), "merge_states: partials[0] out needs at least one feature");
}

}  // namespace
}  // namespace tessera::test
