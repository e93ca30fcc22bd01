// The top-k of one row of scores against sorting by the rule, with every mixture of forced, own and scored blocks.
#include "ops/select_topk/select_topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "random.h"

namespace tessera::test {
namespace {

using select_topk::Problem;

// One list of `queries` positions from `first` on.
Problem problem(int64_t blocks, int64_t block, int64_t first, int64_t queries, int64_t topk, const int32_t* offset) {
  Problem p = {};
  p.requests = p.kv_heads = p.group = p.dim = p.lists = 1;
  p.queries = p.block_q = queries;
  p.blocks = blocks;
  p.block = block;
  p.keys = blocks * block - (block > 1 ? 1 : 0);
  p.topk = topk;
  p.q_offset = offset;
  EXPECT_EQ(select_topk::position(p, 0, 0), first);
  return p;
}

// Rank among visible blocks by the words of the rule; 0 is best.
int tier(const Problem& p, int64_t first, int64_t n) {
  const int64_t own = (first + p.queries - 1) / p.block;
  if (n < p.init_blocks || (n <= own && n > own - p.local_blocks)) return 0;
  bool is_own = false;
  for (int64_t t = first; t < first + p.queries; ++t) is_own |= t >= 0 && t / p.block == n;
  return is_own && p.local_blocks > 0 ? 1 : 2;
}

std::vector<int32_t> sorted_by_the_rule(const Problem& p, int64_t first, const std::vector<float>& scores) {
  std::vector<int32_t> order;
  for (int64_t n = 0; n < p.blocks; ++n) {
    if (n * p.block <= first + p.queries - 1) order.push_back(static_cast<int32_t>(n));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (tier(p, first, a) != tier(p, first, b)) return tier(p, first, a) < tier(p, first, b);
    const float x = scores[static_cast<size_t>(a)];
    const float y = scores[static_cast<size_t>(b)];
    return x > y || (!std::isnan(x) && std::isnan(y));
  });
  if (static_cast<int64_t>(order.size()) > p.topk) order.resize(static_cast<size_t>(p.topk));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(p.topk), -1);
  return order;
}

std::vector<int32_t> selected(Problem p, const std::vector<float>& scores) {
  std::vector<int32_t> ids(static_cast<size_t>(p.topk), -7);
  std::vector<uint32_t> scratch(scores.size());
  p.ids = ids.data();
  p.ids_entry = 1;
  select_topk::write_ids(p, 0, 0, 0, scores.data(), scratch.data());
  return ids;
}

TEST(SelectTopk, IsSortingByTheRule) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float few[] = {0.0f, -0.0f, 1.0f, -1.0f, infinity, -infinity, std::nanf(""), -std::nanf(""), 1e-42f, -1e-42f};
  Random random(11);
  for (int repeat = 0; repeat < 20000; ++repeat) {
    const int64_t blocks = random.below(12);
    const int64_t block = 1 + random.below(4);
    const int64_t queries = 1 + random.below(3 * block);
    const auto offset = static_cast<int32_t>(random.below(blocks * block + 8) - 4);
    Problem p = problem(blocks, block, offset, queries, 1 + random.below(9), &offset);
    p.local_blocks = random.below(p.topk + 1);
    p.init_blocks = random.below(p.topk - p.local_blocks + 1);
    std::vector<float> scores;
    for (int64_t n = 0; n < blocks; ++n) scores.push_back(random.chance(3) ? random.normal() : random.pick(few));
    ASSERT_EQ(selected(p, scores), sorted_by_the_rule(p, offset, scores))
        << "N " << blocks << ", bs " << block << ", Sq " << queries << ", offset " << offset << ", K " << p.topk
        << ", local " << p.local_blocks << ", init " << p.init_blocks;
  }
}

TEST(SelectTopk, TakesAMillionBlocks) {
  const int64_t blocks = 1'000'000;
  const auto last = static_cast<int32_t>(blocks - 1);
  Random random(12);
  std::vector<float> scores;
  for (int64_t n = 0; n < blocks; ++n) scores.push_back(static_cast<float>(random.below(1000)));
  for (int64_t topk : {int64_t{1}, int64_t{2048}, blocks - 1}) {
    Problem p = problem(blocks, 1, last, 1, topk, &last);
    p.init_blocks = 1;
    EXPECT_EQ(selected(p, scores), sorted_by_the_rule(p, last, scores));
  }
}

}  // namespace
}  // namespace tessera::test
