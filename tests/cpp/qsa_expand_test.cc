// qsa_expand_blocks: by hand, against the reference for anything that ids and positions may hold, and its errors.
#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <string>
#include <vector>

#include "by_hand.h"
#include "qsa_keys.h"

namespace tessera::test {
namespace {

using ExpandArgs = tessera_qsa_expand_blocks_args;

std::vector<double> expand(const TestTensor& ids, const TestTensor& positions, int64_t block, int64_t width) {
  Shape shape(ids.view().shape, ids.view().shape + ids.view().ndim);
  shape.back() = width;
  const TestTensor tokens(TESSERA_I32, shape);
  const ExpandArgs a = {ids, positions, block, tokens};
  EXPECT_EQ(tessera_qsa_expand_blocks(&a, nullptr), TESSERA_OK) << tessera_last_error();
  return tokens.values().values();
}
std::vector<double> expand(const std::vector<double>& ids, double position, int64_t block = 4) {
  const auto k = static_cast<int64_t>(ids.size());
  return expand(i32({1, k}, ids), i32({1}, {position}), block, k * block + block - 1);
}

using List = std::vector<double>;

TEST(QsaExpand, ByHand) {
  EXPECT_EQ(expand({0, 2}, 13), (List{0, 1, 2, 3, 8, 9, 10, 11, 12, 13, -1}));
  EXPECT_EQ(expand({2, 0}, 14), (List{8, 9, 10, 11, 0, 1, 2, 3, 12, 13, 14}));     // in the order of the ids
  EXPECT_EQ(expand({0, -1}, 11), (List{0, 1, 2, 3, -1, -1, -1, -1, -1, -1, -1}));  // no block is incomplete
  EXPECT_EQ(expand({-1, 1}, 8), (List{4, 5, 6, 7, 8, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(expand({}, 1), (List{0, 1, -1}));
  EXPECT_EQ(expand({}, 3), (List{-1, -1, -1}));
  EXPECT_EQ(expand({5, 1}, 5, 1), (List{5, 1}));
}

TEST(QsaExpand, IncompleteBlockIsListedOnce) {
  EXPECT_EQ(expand({1, 0}, 5), (List{4, 5, 0, 1, 2, 3, -1, -1, -1, -1, -1}));
  EXPECT_EQ(expand({1, 1}, 5), (List{4, 5, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(expand({0}, 0), (List{0, -1, -1, -1, -1, -1, -1}));
}

TEST(QsaExpand, SkipsWhatIsNotThere) {
  EXPECT_EQ(expand({INT_MIN, INT_MAX, 2, 1, 3}, 6, 3),
            (List{6, 3, 4, 5, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(expand({0, 1}, -1, 2), (List{-1, -1, -1, -1, -1}));
  EXPECT_EQ(expand({0, 1}, INT_MIN, 2), (List{-1, -1, -1, -1, -1}));
  const double last = INT_MAX;  // the last token of its block of 4, the first of its block of 2^31 - 1
  EXPECT_EQ(expand({last, (last - 3) / 4}, last),
            (List{last - 3, last - 2, last - 1, last, -1, -1, -1, -1, -1, -1, -1}));
}

TEST(QsaExpand, WidthOfTheModel) {
  std::vector<double> ids(512);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<double>(3 * i);
  const std::vector<double> tokens = expand(ids, 262142);
  EXPECT_EQ(tokens.size(), 2051u);
  EXPECT_EQ(tokens[2047], 4 * ids[511] + 3);
  EXPECT_EQ(tokens[2050], 262142);
}

TEST(QsaExpand, AgreesWithTheReference) {
  Random random(1);
  const Shape shapes[] = {{7, 5}, {2, 3, 4}, {2, 2, 3, 9}, {2, 1, 2, 2, 6}, {300, 64}, {0, 4}, {3, 0}, {11}};
  for (const Shape& shape : shapes) {
    for (const int64_t block : {1, 2, 3, 4, 5, 17}) {
      for (const bool gaps : {false, true}) {
        SCOPED_TRACE(testing::PrintToString(shape) + ", block " + std::to_string(block) + ", gaps " +
                     std::to_string(gaps));
        const Shape rows(shape.begin(), shape.end() - 1);
        Shape wide = shape;
        wide.back() = shape.back() * block + block - 1;
        TestTensor ids = maybe_gappy(TESSERA_I32, shape, gaps, gaps ? 2 : 1);
        TestTensor positions = maybe_gappy(TESSERA_I32, rows, gaps, gaps ? 3 : 1);
        const int64_t tokens = 2 * block * std::max<int64_t>(shape.back(), 1);
        const int64_t hostile[] = {-1, INT_MIN, INT_MAX, tokens / block, tokens / block + 1};
        for (int64_t i = 0; i < ids.elements(); ++i) {
          ids.set(i, static_cast<double>(random.chance(4) ? random.pick(hostile) : random.below(tokens / block)));
        }
        const auto position = [&] { return random.chance(8) ? -1 - random.below(5) : random.below(tokens); };
        for (int64_t i = 0; i < positions.elements(); ++i) positions.set(i, static_cast<double>(position()));
        std::vector<std::vector<uint32_t>> bits;
        for (const auto& [backend, threads] :
             {std::pair{TESSERA_BACKEND_REFERENCE, 1}, {TESSERA_BACKEND_NATIVE, 1}, {TESSERA_BACKEND_NATIVE, 3}}) {
          const TestTensor to = maybe_gappy(TESSERA_I32, wide, gaps, gaps ? 2 : 1);
          tessera_context context = {};
          context.backend = backend;
          context.executor = {TESSERA_EXECUTOR_THREADS, threads, 0, 0, nullptr, nullptr};
          const ExpandArgs a = {ids, positions, block, to};
          ASSERT_EQ(tessera_qsa_expand_blocks(&a, &context), TESSERA_OK) << tessera_last_error();
          EXPECT_TRUE(to.all_written() && to.gaps_untouched());
          bits.push_back(to.all_bits());
        }
        ASSERT_TRUE(bits[0] == bits[1] && bits[1] == bits[2]);
      }
    }
  }
}

// Ids beyond the position change nothing wherever they stand, but for the width.
TEST(QsaExpand, InvalidIdsChangeNothing) {
  const std::vector<double> want = expand({3, 0, 5}, 22);
  std::vector<double> wide = expand({-1, 3, 100, 0, INT_MIN, 5}, 22);
  ASSERT_EQ(wide.size(), want.size() + 12);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(wide[i], want[i]);
}

// ---- Errors ----

void refused(tessera_status status, const std::string& message, const std::function<void(ExpandArgs&)>& spoil) {
  SCOPED_TRACE(message);
  const TestTensor ids(TESSERA_I32, {3, 2, 5}), positions(TESSERA_I32, {3, 2});
  for (const tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
    const TestTensor to(TESSERA_I32, {3, 2, 23});
    ExpandArgs a = {ids, positions, 4, to};
    spoil(a);
    tessera_context context = {};
    context.backend = backend;
    EXPECT_EQ(tessera_qsa_expand_blocks(&a, &context), status);
    EXPECT_EQ(std::string(tessera_last_error()).rfind("qsa_expand_blocks: " + message, 0), 0u) << tessera_last_error();
    EXPECT_TRUE(to.untouched());
  }
}
void invalid(const std::string& message, const std::function<void(ExpandArgs&)>& spoil) {
  refused(TESSERA_INVALID_ARGUMENT, message, spoil);
}

TEST(QsaExpandErrors, NameTheArgument) {
  invalid("block_ids [..., K] is missing", [](ExpandArgs& a) { a.block_ids = {}; });
  invalid("query_positions [...] is missing", [](ExpandArgs& a) { a.query_positions = {}; });
  invalid("query_positions has 1 axes; expected [...]", [](ExpandArgs& a) { a.query_positions.ndim = 1; });
  invalid("query_positions [3, 1] has size 1 in axis 1; expected 2 (block_ids)",
          [](ExpandArgs& a) { a.query_positions.shape[1] = 1; });
  invalid("query_positions has 2 axes; expected none", [](ExpandArgs& a) { a.block_ids.ndim = 1; });
  invalid("block_size is -1; expected at least 1", [](ExpandArgs& a) { a.block_size = -1; });
  invalid("block_size is 9223372036854775807, too much for 5 blocks", [](ExpandArgs& a) { a.block_size = INT64_MAX; });
  invalid("token_indices [..., K * block_size + block_size - 1] is missing",
          [](ExpandArgs& a) { a.token_indices = {}; });
  invalid("token_indices [3, 2, 23] has size 23 in axis 2; expected 29 (K * block_size + block_size - 1)",
          [](ExpandArgs& a) { a.block_size = 5; });
  invalid("token_indices [2, 2, 23] has size 2 in axis 0; expected 3 (block_ids)",
          [](ExpandArgs& a) { a.token_indices.shape[0] = 2; });
  invalid("token_indices overlaps itself", [](ExpandArgs& a) { a.token_indices.stride[1] = 22; });
  invalid("token_indices overlaps block_ids", [](ExpandArgs& a) { a.block_ids.data = a.token_indices.data; });
  invalid("token_indices overlaps query_positions",
          [](ExpandArgs& a) { a.query_positions.data = a.token_indices.data; });
  refused(TESSERA_TYPE_ERROR, "block_ids is float32", [](ExpandArgs& a) { a.block_ids.dtype = TESSERA_F32; });
  refused(TESSERA_TYPE_ERROR, "query_positions is float32",
          [](ExpandArgs& a) { a.query_positions.dtype = TESSERA_F32; });
  refused(TESSERA_TYPE_ERROR, "token_indices is another dtype",
          [](ExpandArgs& a) { a.token_indices.dtype = TESSERA_OTHER_DTYPE; });
}

TEST(QsaExpandErrors, Calls) {
  EXPECT_EQ(tessera_qsa_expand_blocks(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  const TestTensor ids(TESSERA_I32, {1, 1}), positions(TESSERA_I32, {1}), to(TESSERA_I32, {1, 7});
  const ExpandArgs a = {ids, positions, 0, to};
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    tessera_context context = {};
    context.variant = tessera_variant_name(i);
    const bool available = tessera_variant_available(i) != 0;
    EXPECT_EQ(tessera_qsa_expand_blocks(&a, &context), available ? TESSERA_OK : TESSERA_NOT_IMPLEMENTED);
  }
}

}  // namespace
}  // namespace tessera::test
