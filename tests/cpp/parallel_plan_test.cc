// Who computes and who owns what.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "parallel.h"

namespace tessera::test {
namespace {

std::vector<int64_t> partition(const std::vector<int64_t>& work, int64_t parts) {
  std::vector<int64_t> bounds(static_cast<size_t>(parts) + 1);
  EXPECT_EQ(tessera_partition(work.data(), static_cast<int64_t>(work.size()), parts, bounds.data()), TESSERA_OK);
  return bounds;
}

TEST(Partition, EqualItemsAreSharedOut) {
  EXPECT_EQ(partition({1, 1, 1, 1, 1, 1}, 3), (std::vector<int64_t>{0, 2, 4, 6}));
  EXPECT_EQ(partition({5, 5}, 4), (std::vector<int64_t>{0, 0, 1, 1, 2}));
  EXPECT_EQ(partition({}, 2), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(partition({0, 0, 0}, 2).back(), 3);
}

TEST(Partition, NoPartIsFurtherFromItsShareThanAnItem) {
  Random random(3);
  for (int64_t parts : {1, 2, 3, 7, 64}) {
    std::vector<int64_t> work(200);
    for (int64_t& w : work) w = random.below(1000);
    const int64_t most = *std::max_element(work.begin(), work.end());
    const double share =
        static_cast<double>(std::accumulate(work.begin(), work.end(), int64_t{0})) / static_cast<double>(parts);
    const std::vector<int64_t> bounds = partition(work, parts);
    EXPECT_EQ(bounds.front(), 0);
    EXPECT_EQ(bounds.back(), 200);
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      ASSERT_LE(bounds[i], bounds[i + 1]);
      const int64_t sum = std::accumulate(work.begin() + bounds[i], work.begin() + bounds[i + 1], int64_t{0});
      EXPECT_LE(std::abs(static_cast<double>(sum) - share), static_cast<double>(most) + 1);
    }
  }
}

// A causal prefill whose late rows have all K blocks and whose early rows have few.
TEST(Partition, EarlyRowsAreCheap) {
  std::vector<int64_t> work;
  for (int64_t row = 0; row < 64; ++row) work.push_back(std::min<int64_t>(row + 1, 32));
  const std::vector<int64_t> bounds = partition(work, 2);
  EXPECT_EQ(bounds[1], 40);  // 528 + 8 * 32 = 784 of 1552
}

TEST(OwnPages, EveryPageHasOneOwner) {
  const TestTensor lengths = ints({100, 0, 37, 1});
  for (tessera_ownership ownership : kOwnerships) {
    for (int32_t size : kSizes) {
      std::vector<int> owners(4 * 9);
      for (int32_t rank = 0; rank < size; ++rank) {
        TestTensor table(TESSERA_I32, {4, 9}), chosen(TESSERA_I32, {4, 9});
        chosen.fill(size - 1);
        tessera_own_pages_args args = {ownership, rank, size, 16, lengths, {}, table};
        if (ownership == TESSERA_OWN_BY_PAGE) args.owners = chosen;
        int64_t pages = 0, next = 0;
        ASSERT_EQ(tessera_own_pages(&args, &pages), TESSERA_OK) << tessera_last_error();
        for (int64_t i = 0; i < table.elements(); ++i) {
          if (table.get(i) < 0) continue;
          EXPECT_EQ(table.get(i), static_cast<double>(next++));
          ++owners[static_cast<size_t>(i)];
        }
        EXPECT_EQ(next, pages);
        EXPECT_LE(pages, ownership == TESSERA_OWN_BY_PAGE ? 11 : 11 / size + 3);
      }
      for (int64_t i = 0; i < 36; ++i) {
        const int64_t used = std::vector<int64_t>{7, 0, 3, 1}[static_cast<size_t>(i / 9)];
        EXPECT_EQ(owners[static_cast<size_t>(i)], i % 9 < used ? 1 : 0) << i;
      }
    }
  }
}

TEST(OwnPages, BadArgumentsAreRefused) {
  const TestTensor lengths = ints({100}), table(TESSERA_I32, {1, 9});
  int64_t pages = 0;
  const auto message = [&](const tessera_own_pages_args& args) {
    EXPECT_EQ(tessera_own_pages(&args, &pages), TESSERA_INVALID_ARGUMENT);
    return std::string(tessera_last_error());
  };
  EXPECT_EQ(message({TESSERA_OWN_STRIPED, 2, 2, 16, lengths, {}, table}), "own_pages: rank is 2; expected one of 2");
  EXPECT_EQ(message({TESSERA_OWN_STRIPED, 0, 2, 0, lengths, {}, table}),
            "own_pages: page_size is 0; expected at least 1");
  EXPECT_EQ(message({TESSERA_OWN_BY_PAGE, 0, 2, 16, lengths, {}, table}),
            "own_pages: owners [B, max_pages] is missing");
  EXPECT_EQ(message({TESSERA_OWN_STRIPED, 0, 2, 16, lengths, table, table}),
            "own_pages: owners is for ownership by page");
}

}  // namespace
}  // namespace tessera::test
