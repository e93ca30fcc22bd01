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

using select_topk::Rule;

// One list of queries at positions [first, last].
struct List {
  Rule rule;
  int64_t first;
  int64_t last;
  int64_t blocks;

  int64_t keys() const { return blocks * rule.block - (rule.block > 1 && blocks > 0 ? 1 : 0); }
};

// Rank among visible blocks by the words of the rule; 0 is best.
int tier(const List& l, int64_t n) {
  const int64_t own = l.last / l.rule.block;
  if (n < l.rule.init_blocks || (n <= own && n > own - l.rule.local_blocks)) return 0;
  bool is_own = false;
  for (int64_t t = l.first; t <= l.last; ++t) is_own |= t >= 0 && t / l.rule.block == n;
  return is_own && l.rule.local_blocks > 0 ? 1 : 2;
}

std::vector<int32_t> sorted_by_the_rule(const List& l, const std::vector<float>& scores) {
  std::vector<int32_t> order;
  for (int64_t n = 0; n < l.blocks; ++n) {
    if (n * l.rule.block <= l.last) order.push_back(static_cast<int32_t>(n));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (tier(l, a) != tier(l, b)) return tier(l, a) < tier(l, b);
    const float x = scores[static_cast<size_t>(a)];
    const float y = scores[static_cast<size_t>(b)];
    return x > y || (!std::isnan(x) && std::isnan(y));
  });
  if (static_cast<int64_t>(order.size()) > l.rule.topk) order.resize(static_cast<size_t>(l.rule.topk));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(l.rule.topk), -1);
  return order;
}

std::vector<int32_t> selected(const List& l, const std::vector<float>& scores) {
  std::vector<int32_t> ids(static_cast<size_t>(l.rule.topk), -7);
  std::vector<uint32_t> scratch(scores.size());
  const select_topk::Ranges ranges = select_topk::ranges(l.rule, l.first, l.last, l.keys());
  select_topk::write_ids(l.rule, ranges, scores.data(), scratch.data(), ids.data(), 1);
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
    const int64_t first = random.below(blocks * block + 8) - 4;
    List l = {{1 + random.below(9), block, 0, 0}, first, first + queries - 1, blocks};
    l.rule.local_blocks = random.below(l.rule.topk + 1);
    l.rule.init_blocks = random.below(l.rule.topk - l.rule.local_blocks + 1);
    std::vector<float> scores;
    for (int64_t n = 0; n < blocks; ++n) scores.push_back(random.chance(3) ? random.normal() : random.pick(few));
    ASSERT_EQ(selected(l, scores), sorted_by_the_rule(l, scores))
        << "N " << blocks << ", bs " << block << ", Sq " << queries << ", first " << first << ", K " << l.rule.topk
        << ", local " << l.rule.local_blocks << ", init " << l.rule.init_blocks;
  }
}

TEST(SelectTopk, TakesAMillionBlocks) {
  const int64_t blocks = 1'000'000;
  Random random(12);
  std::vector<float> scores;
  for (int64_t n = 0; n < blocks; ++n) scores.push_back(static_cast<float>(random.below(1000)));
  for (int64_t topk : {int64_t{1}, int64_t{2048}, blocks - 1}) {
    const List l = {{topk, 1, 0, 1}, blocks - 1, blocks - 1, blocks};
    EXPECT_EQ(selected(l, scores), sorted_by_the_rule(l, scores));
  }
}

}  // namespace
}  // namespace tessera::test
