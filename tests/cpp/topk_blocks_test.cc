// The selection from given scores: exact, by the rule, for any shape and strides.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention_bits.h"
#include "messages.h"
#include "reference/reference.h"
#include "selection.h"

namespace tessera::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int32_t> topk(const TestTensor& scores, const TestTensor& ids, const tessera_context& with = {}) {
  const tessera_topk_blocks_args args = {scores, ids};
  EXPECT_EQ(tessera_topk_blocks(&args, &with), TESSERA_OK) << tessera_last_error();
  expect_clean(ids, "indices");
  return ids_of(ids);
}

void expect_exact(const TestTensor& scores, const Shape& shape) {
  const std::vector<int32_t> want = reference::topk_blocks({scores, TestTensor(TESSERA_I32, shape)}).ids;
  for_each_variant(TESSERA_F32, [&](const tessera_context& with) {
    EXPECT_EQ(topk(scores, TestTensor(TESSERA_I32, shape), with), want);
    EXPECT_EQ(topk(scores, TestTensor(TESSERA_I32, shape, gappy_strides(shape, 2)), with), want);
  });
}

// Number `i` of a row of n scores: everything that may confuse a ranking, one kind per row.
double tricky(int64_t kind, int64_t i, int64_t n, Random* random) {
  switch (kind) {
    case 0: return random->normal();
    case 1: return 0.25;
    case 2: return i % 3 == 0 ? -0.0 : 0.0;
    case 3: return 1 + static_cast<double>(i * 7919 % n) * 0x1p-23;
    case 4: return random->below(10) < 6 ? std::nan("") : random->normal();
    case 5: return i % 2 == 0 ? -kInfinity : random->normal();
    case 6: return i % 5 == 0 ? kInfinity : -kInfinity;
    case 7: return static_cast<double>(random->below(1 << 12) - 2048) * 0x1p-149;
    case 8: return static_cast<double>(n - i);
    case 9: return static_cast<double>(i - n);
    case 10: return std::nan("");
    case 11: return -kInfinity;
    case 12: return random->below(4) == 0 ? -3.4e38 : 1e-3 * random->normal();
    default: return 1 + 0.245 * static_cast<double>(random->below(1 << 20)) * 0x1p-20;
  }
}
constexpr int64_t kKinds = 14;

TestTensor tricky_rows(int64_t n, const Shape& strides) {
  TestTensor scores(TESSERA_F32, {kKinds, n}, strides);
  Random random(static_cast<uint64_t>(n));
  for (int64_t i = 0; i < scores.elements(); ++i) scores.set(i, tricky(i / n, i % n, n, &random));
  return scores;
}

TEST(TopkBlocks, RanksExactly) {
  for (int64_t n : {1, 2, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1000, 4097}) {
    for (int64_t k : {1, 2, 4, 64, 512, 2048}) {
      SCOPED_TRACE(std::to_string(n) + " scores, top " + std::to_string(k));
      expect_exact(tricky_rows(n, {n, 1}), {kKinds, k});
    }
  }
}

TEST(TopkBlocks, RanksAMillionExactly) {
  const int64_t n = (1 << 20) + 13;
  TestTensor scores(TESSERA_F32, {n});
  Random random(1);
  for (int64_t i = 0; i < n; ++i) scores.set(i, random.chance(50) ? std::nan("") : random.normal());
  for (int64_t k : {1, 512, 2048}) expect_exact(scores, {k});
}

TEST(TopkBlocks, TakesAnyShapeAndStrides) {
  const Shape shapes[] = {{70}, {3, 70}, {2, 3, 70}, {2, 1, 3, 70}, {2, 2, 1, 2, 70}, {0, 70}, {3, 0}, {2, 0, 70}};
  for (const Shape& shape : shapes) {
    for (int64_t last : {1, 3}) {
      TestTensor scores(TESSERA_F32, shape, gappy_strides(shape, last));
      Random random(2);
      scores.fill_normal(random);
      Shape ids = shape;
      ids.back() = 5;
      expect_exact(scores, ids);
    }
  }
  TestTensor same(TESSERA_F32, {4, 70}, {0, 1});
  Random random(3);
  same.fill_normal(random);
  expect_exact(same, {4, 9});
}

TEST(TopkBlocks, IsTheSameForEveryNumberOfThreads) {
  const TestTensor scores = tricky_rows(3000, {3001, 1});
  for_each_variant(TESSERA_F32, [&](const tessera_context& with) {
    const std::vector<int32_t> want = topk(scores, TestTensor(TESSERA_I32, {kKinds, 512}), with);
    for (int n : {1, 2, 3, 7}) {
      tessera_context threads = with;
      threads.executor = {TESSERA_EXECUTOR_THREADS, n, 0, 0, nullptr, nullptr};
      EXPECT_EQ(topk(scores, TestTensor(TESSERA_I32, {kKinds, 512}), threads), want);
    }
    const TestTensor ids(TESSERA_I32, {kKinds, 512});
    const tessera_topk_blocks_args args = {scores, ids};
    tessera_context part = with;
    for (int32_t i : {2, 0, 1}) {
      part.executor = {TESSERA_EXECUTOR_PART, 0, i, 3, nullptr, nullptr};
      ASSERT_EQ(tessera_topk_blocks(&args, &part), TESSERA_OK) << tessera_last_error();
    }
    EXPECT_EQ(ids_of(ids), want);
  });
}

TEST(TopkBlocks, RunsInTheCallersWorkspace) {
  const TestTensor scores = tricky_rows(3000, {3001, 1});
  for_each_variant(TESSERA_F32, [&](const tessera_context& with) {
    const TestTensor ids(TESSERA_I32, {kKinds, 512}), want(TESSERA_I32, {kKinds, 512});
    topk(scores, want, with);
    const tessera_topk_blocks_args args = {scores, ids};
    expect_same_in_workspace(args, ids, want.all_bits(), with, tessera_topk_blocks_workspace_size, tessera_topk_blocks);
  });
}

TEST(TopkBlocks, ReferenceBackendIsTheOracle) {
  tessera_context context = {};
  context.backend = TESSERA_BACKEND_REFERENCE;
  const TestTensor scores = tricky_rows(300, {301, 1});
  EXPECT_EQ(topk(scores, TestTensor(TESSERA_I32, {kKinds, 40}), context),
            reference::topk_blocks({scores, TestTensor(TESSERA_I32, {kKinds, 40})}).ids);
}

TEST(TopkBlocks, RefusesBadStructure) {
  const TestTensor scores = tricky_rows(30, {30, 1}), ids(TESSERA_I32, {kKinds, 4});
  const auto refused = [&](tessera_status status, const char* argument, const auto& spoil) {
    for (tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
      tessera_context context = {};
      context.backend = backend;
      tessera_topk_blocks_args args = {scores, ids};
      spoil(args);
      EXPECT_EQ(tessera_topk_blocks(&args, &context), status);
      const std::string message = tessera_last_error();
      EXPECT_EQ(message.rfind("topk_blocks: ", 0), 0u) << message;
      EXPECT_TRUE(names(message, argument)) << message;
      EXPECT_TRUE(ids.untouched());
    }
  };
  using Args = tessera_topk_blocks_args;
  refused(TESSERA_INVALID_ARGUMENT, "scores", [](Args& a) { a.scores = {}; });
  refused(TESSERA_INVALID_ARGUMENT, "indices", [](Args& a) { a.indices = {}; });
  refused(TESSERA_INVALID_ARGUMENT, "indices", [](Args& a) { a.indices.ndim = 1; });
  refused(TESSERA_INVALID_ARGUMENT, "indices", [](Args& a) { ++a.indices.shape[0]; });
  refused(TESSERA_INVALID_ARGUMENT, "indices", [](Args& a) { a.indices.stride[0] = 1; });
  refused(TESSERA_INVALID_ARGUMENT, "k", [](Args& a) { a.indices.shape[1] = 0; });
  refused(TESSERA_INVALID_ARGUMENT, "scores", [](Args& a) { a.scores.stride[1] = -1; });
  refused(TESSERA_INVALID_ARGUMENT, "scores", [](Args& a) { a.scores.data = a.indices.data; });
  refused(TESSERA_TYPE_ERROR, "scores", [](Args& a) { a.scores.dtype = TESSERA_BF16; });
  refused(TESSERA_TYPE_ERROR, "indices", [](Args& a) { a.indices.dtype = TESSERA_F32; });
  EXPECT_EQ(tessera_topk_blocks(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tessera::test
