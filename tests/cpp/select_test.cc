// The selectors against the oracle: the same sets, but for scores too close to tell, and the tie rule to the letter.
#include "select.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tessera::test {
namespace {

std::vector<SelectCase> geometries() {
  std::vector<SelectCase> all = {
      {},
      {.requests = 4, .kv_heads = 2, .group = 3, .offset = cases::Offset::kPerRequest},
      {.requests = 2, .kv_heads = 2, .group = 3, .layout = cases::Layout::kStrided},
      {.requests = 4, .kv_heads = 3, .offset = cases::Offset::kPerRequest, .layout = cases::Layout::kBroadcast},
      {.queries = 200, .keys = 200, .group = 3, .topk = 3, .block = 8, .block_q = 64, .stride = 8},
      {.queries = 130, .keys = 333, .group = 3, .dim = 64, .block = 64, .block_q = 64, .stride = 8, .init = 0},
      {.queries = 70,
       .keys = 700,
       .topk = 3,
       .block = 200,
       .block_q = 33,
       .stride = 5,
       .init = 0},  // pieces of a block
      {.queries = 9, .keys = 900, .topk = 2, .block = 257, .block_q = 4, .stride = 1, .local = 0},
      {.queries = 150,
       .keys = 150,
       .topk = 5,
       .block = 16,
       .block_q = 150,
       .stride = 1,
       .local = 2},  // several row tiles
      {.queries = 50, .keys = 150, .group = 64, .block_q = 25, .stride = 10},
      {.queries = 3, .keys = 64, .group = 65, .block = 8, .block_q = 2, .stride = 1},
      // Lists whose first queries have no position.
      {.requests = 4, .block = 2, .block_q = 40, .local = 0, .init = 0, .offset = cases::Offset::kPerRequest},
  };
  for (int64_t queries : {0, 1, 2, 15, 17, 33}) {
    for (int64_t keys : {0, 1, 16, 17, 129}) all.push_back({.queries = queries, .keys = keys, .topk = 2});
  }
  for (int64_t dim : {1, 3, 8, 24, 40, 65, 128, 512}) all.push_back({.dim = dim});
  for (int64_t block : {1, 2, 3, 7, 15, 17, 60, 127, 128, 129, 256}) all.push_back({.topk = 3, .block = block});
  for (int64_t block_q : {1, 2, 5, 39, 40, 41, 1000}) all.push_back({.block_q = block_q, .stride = 3});
  for (int64_t stride : {1, 2, 15, 16, 1000}) all.push_back({.stride = stride});
  for (int64_t topk : {1, 2, 9, 10, 11, 40}) all.push_back({.topk = topk, .local = 1, .init = 0});
  for (int64_t local : {0, 2, 3}) all.push_back({.block = 8, .local = local, .init = 1});
  for (float scale : {0.0f, -0.4f, 1e-30f, 2.0f}) all.push_back({.scale = scale});
  return all;
}

class SelectGeometry : public testing::TestWithParam<SelectCase> {};
INSTANTIATE_TEST_SUITE_P(Select, SelectGeometry, testing::ValuesIn(geometries()));

TEST_P(SelectGeometry, MatchesTheOracle) {
  for (tessera_dtype dtype : kFloats) {
    const Select call(GetParam(), dtype);
    for (Selector s : kSelectors) {
      const reference::Selection want = call.expected(s);
      for (const std::string& variant : variants()) {
        if (!takes(s, variant, dtype)) continue;
        SCOPED_TRACE(std::string(selector_name(s)) + " " + variant + " " + dtype_name(dtype));
        EXPECT_TRUE(selection_within(call.run(s, with_variant(variant.c_str())), want));
      }
    }
  }
}

// Runs every variant and wants exactly the oracle's ids.
void expect_exact(const Select& call) {
  for (Selector s : kSelectors) {
    const std::vector<int32_t> want = call.expected(s).ids;
    for (const std::string& variant : variants()) {
      if (!takes(s, variant, call.dtype)) continue;
      SCOPED_TRACE(std::string(selector_name(s)) + " " + variant);
      const TestTensor got = call.run(s, with_variant(variant.c_str()));
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < got.elements(); ++i) ids.push_back(static_cast<int32_t>(got.get(i)));
      EXPECT_EQ(ids, want);
    }
  }
}

// Blocks of equal keys out of few kinds: every score occurs many times.
Select with_ties(const SelectCase& c, int64_t kinds, tessera_dtype dtype = TESSERA_BF16) {
  Select call(c, dtype);
  Random random(7);
  for (int64_t i = 0; i < call.q.elements(); ++i) call.q.set(i, static_cast<double>(random.below(3)) - 1);
  std::vector<double> pattern(static_cast<size_t>(kinds * c.dim));
  for (double& x : pattern) x = static_cast<double>(random.below(3)) - 1;
  const int64_t blocks = (c.keys + c.block - 1) / c.block;
  for (int64_t n = 0; n < blocks; ++n) {
    const int64_t kind = random.below(kinds);
    for (int64_t key = n * c.block; key < std::min((n + 1) * c.block, c.keys); ++key) {
      for (int64_t d = 0; d < c.requests * c.kv_heads * c.dim; ++d) {
        const int64_t b = d / (c.kv_heads * c.dim);
        const int64_t rest = d % (c.kv_heads * c.dim);
        call.k.set((b * c.keys + key) * c.kv_heads * c.dim + rest,
                   pattern[static_cast<size_t>(kind * c.dim + rest % c.dim)]);
      }
    }
  }
  return call;
}

TEST(Select, BreaksTiesByTheLowerId) {
  for (int64_t kinds : {1, 2, 4}) {
    SCOPED_TRACE(kinds);
    expect_exact(with_ties({.queries = 64, .keys = 256, .dim = 8, .topk = 7, .block = 8, .block_q = 16}, kinds));
    expect_exact(with_ties(
        {.queries = 8, .keys = 256, .dim = 4, .topk = 5, .block = 4, .block_q = 4, .stride = 1, .local = 0, .init = 0},
        kinds, TESSERA_F32));
  }
}

// 24 queries of blocks of 16, not aligned to them: a list has up to three own blocks, more than fit beside the forced
// ones.
TEST(Select, PrefersOwnBlocksOfEveryRow) {
  for (int64_t topk : {2, 3, 4}) {
    for (int64_t offset : {0, 5, 100, 101, 111, 112, 150}) {
      SCOPED_TRACE(testing::Message() << "topk " << topk << ", offset " << offset);
      Select call = with_ties({.queries = 60, .keys = 192, .dim = 8, .topk = topk, .block_q = 24}, 4);
      call.q_offset = TestTensor(TESSERA_I32, {1});
      call.q_offset.set(0, static_cast<double>(offset));
      expect_exact(call);
    }
  }
}

TEST(Select, ListsManyBlocks) {
  for (int64_t blocks : {1025, 8193}) {
    for (int64_t block : {1, 3}) {
      const SelectCase c = {.queries = 5,
                            .keys = blocks * block - (block - 1),
                            .dim = 8,
                            .topk = 60,
                            .block = block,
                            .block_q = 3,
                            .stride = 2};
      const Select call(c, TESSERA_F32);
      for (Selector s : kSelectors) {
        const reference::Selection want = call.expected(s);
        for (const std::string& variant : variants()) {
          if (!takes(s, variant, call.dtype)) continue;
          EXPECT_TRUE(selection_within(call.run(s, with_variant(variant.c_str())), want)) << variant;
        }
      }
    }
  }
}

TEST(Select, ListsAllBlocksWhereNoMoreAreVisible) {
  Select call({.topk = 10}, TESSERA_F32);
  call.q.fill(std::numeric_limits<double>::quiet_NaN());
  call.k.fill(std::numeric_limits<double>::quiet_NaN());
  expect_exact(call);
}

// ---- NaN -----------------------------------------------------------------------------------------------------------

void poison_key(const Select& call, int64_t key, double value) {
  TestTensor k = call.k;
  const int64_t row = call.shape.kv_heads * call.shape.dim;
  for (int64_t b = 0; b < call.shape.requests; ++b) {
    for (int64_t d = 0; d < row; ++d) k.set((b * call.shape.keys + key) * row + d, value);
  }
}

TEST(Select, InvisibleKeysChangeNoBit) {
  const double poisons[] = {std::nan(""), std::numeric_limits<double>::infinity()};
  for (tessera_dtype dtype : {TESSERA_BF16, TESSERA_F32}) {
    // Positions 60 to 99 of 150 keys: blocks of 16 from key 112 on are invisible.
    SelectCase c = {.kv_heads = 2, .topk = 3};
    Select clean(c, dtype);
    clean.q_offset = TestTensor(TESSERA_I32, {1});
    clean.q_offset.set(0, 60);
    for (double poison : poisons) {
      Select dirty = clean;
      dirty.k = clean.k.clone();
      // The mean of a visible block is over all its keys, so only mass_select may meet poison there.
      for (int64_t key = 112; key < c.keys; ++key) poison_key(dirty, key, poison);
      for (const std::string& variant : variants()) {
        const tessera_context context = with_variant(variant.c_str());
        for (Selector s : kSelectors) {
          if (!takes(s, variant, dtype)) continue;
          EXPECT_EQ(dirty.run(s, context).all_bits(), clean.run(s, context).all_bits());
        }
      }
      for (int64_t key = 100; key < 112; ++key) poison_key(dirty, key, poison);
      for (const std::string& variant : variants()) {
        if (!takes(variant, dtype)) continue;
        const tessera_context context = with_variant(variant.c_str());
        EXPECT_EQ(dirty.run(Selector::kMass, context).all_bits(), clean.run(Selector::kMass, context).all_bits());
      }
    }
  }
}

TEST(Select, NanRanksLast) {
  for (double poison :
       {std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    for (int64_t key : {3, 40, 120}) {
      SCOPED_TRACE(testing::Message() << poison << " in key " << key);
      Select call = with_ties({.queries = 64, .keys = 256, .dim = 8, .topk = 6, .block = 8, .block_q = 16}, 3);
      call.k = call.k.clone();
      poison_key(call, key, poison);
      expect_exact(call);
    }
  }
}

// A block of scores of -inf has no mass, and the others keep theirs.
TEST(Select, MinusInfinityIsNoMass) {
  const SelectCase c = {.queries = 64, .keys = 256, .dim = 8, .topk = 6, .block = 8, .block_q = 16};
  for (int64_t block : {0, 5, 20}) {
    SCOPED_TRACE(block);
    Select call = with_ties(c, 3);
    call.q.fill(1);
    for (int64_t key = block * c.block; key < (block + 1) * c.block; ++key) {
      poison_key(call, key, -std::numeric_limits<double>::infinity());
    }
    expect_exact(call);
  }
}

TEST(Select, ReferenceBackendIsTheOracle) {
  tessera_context context = {};
  context.backend = TESSERA_BACKEND_REFERENCE;
  const Select call({.requests = 2, .kv_heads = 2, .layout = cases::Layout::kStrided}, TESSERA_F16);
  for (Selector s : kSelectors) {
    const TestTensor got = call.run(s, context);
    const std::vector<int32_t> want = call.expected(s).ids;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got.get(static_cast<int64_t>(i)), want[i]);
  }
}

TEST(Select, DefaultsAreTheDocumentedOnes) {
  SelectCase c = {.queries = 300, .keys = 700, .block = 64, .block_q = 64, .stride = 8};
  c.scale = 0.25f;  // 1 / sqrt(16)
  const Select mass(c, TESSERA_BF16);
  SelectArgs a = mass.args();
  a.block_size = a.block_q = a.stride = 0;
  a.softmax_scale = nullptr;
  const TestTensor mass_ids = mass.indices();
  a.indices = mass_ids;
  ASSERT_EQ(select(Selector::kMass, a, nullptr), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(mass_ids.all_bits(), mass.run(Selector::kMass).all_bits());

  c.block = 128;
  c.block_q = 1;
  const Select moba(c, TESSERA_BF16);
  const TestTensor moba_ids = moba.indices();
  a = moba.args();
  a.block_size = a.block_q = 0;
  a.indices = moba_ids;
  ASSERT_EQ(select(Selector::kMoba, a, nullptr), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(moba_ids.all_bits(), moba.run(Selector::kMoba).all_bits());
}

}  // namespace
}  // namespace tessera::test
