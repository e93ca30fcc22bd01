// cp_merge and merge_states against the oracle, their bits, and what they refuse.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bounds.h"
#include "merge_variants.h"
#include "messages.h"
#include "tensors.h"

namespace tessera::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<tessera_tensor> views(const std::vector<TestTensor>& tensors) { return {tensors.begin(), tensors.end()}; }

struct Shards {
  std::vector<TestTensor> o, l, m;  // m is the lse of merge_states
};

// `count` shards of [leading..., dim]; about one in five is empty and holds NaN. `gaps`: each has strides of its own.
Shards make_shards(int64_t count, const Shape& leading, int64_t dim, tessera_dtype dtype, bool gaps, uint64_t stream) {
  Random random(stream);
  Shape full = leading;
  full.push_back(dim);
  Shards shards;
  for (int64_t i = 0; i < count; ++i) {
    const bool gappy = gaps && i % 2 == 0;
    TestTensor o(dtype, full, gappy ? gappy_strides(full, 1) : dense_strides(full));
    TestTensor l(TESSERA_F32, leading, gappy ? gappy_strides(leading, 2) : dense_strides(leading));
    TestTensor m = l.clone();
    o.fill_normal(random);
    for (int64_t row = 0; row < l.elements(); ++row) {
      const int64_t kind = random.below(10);
      l.set(row, kind == 0 ? 0 : 1 + 100 * std::fabs(random.normal()));
      m.set(row, kind <= 1 ? -kInf : 20 * random.normal());
      for (int64_t d = 0; d < dim; ++d) {
        if (kind <= 1) o.set(row * dim + d, std::nan(""));
      }
    }
    shards.o.push_back(o);
    shards.l.push_back(l);
    shards.m.push_back(m);
  }
  return shards;
}

struct Case {
  int64_t count;
  Shape leading;
  int64_t dim;
  bool gaps;
};
const Case kCases[] = {
    {1, {2, 3, 4}, 16, false},  {2, {2, 3, 4}, 128, false}, {3, {1, 33, 5}, 64, true}, {7, {9}, 24, true},
    {5, {2, 1, 3, 2}, 1, true}, {3, {20, 3}, 513, true},    {2, {0, 4}, 16, false},    {4, {1000}, 8, false},
    {64, {3}, 40, false},       {2, {}, 8, false},          {3, {}, 1, true},
};

void expect_written(const TestTensor& t, const char* name) {
  EXPECT_TRUE(t.all_written()) << name;
  EXPECT_TRUE(t.gaps_untouched()) << name;
}

class Merge : public WithMergeVariant {};
INSTANTIATE_TEST_SUITE_P(, Merge, testing::ValuesIn(merge_variants()), [](const auto& test) { return test.param; });

TEST_P(Merge, OfStatesMatchesTheOracle) {
  for (const Case& c : kCases) {
    for (tessera_dtype dtype : kFloats) {
      SCOPED_TRACE(testing::Message() << c.count << " shards, dim " << c.dim << ", " << dtype_name(dtype));
      const Shards shards = make_shards(c.count, c.leading, c.dim, TESSERA_F32, c.gaps, 11);
      const auto o = views(shards.o), l = views(shards.l), m = views(shards.m);
      Shape full = c.leading;
      full.push_back(c.dim);
      const TestTensor out(dtype, full, c.gaps ? gappy_strides(full, 1) : dense_strides(full));
      const tessera_cp_merge_args a = {o.data(), l.data(), m.data(), c.count, out};
      ASSERT_EQ(tessera_cp_merge(&a, &chosen), TESSERA_OK) << tessera_last_error();
      expect_written(out, "out");
      const reference::Merge want = reference::cp_merge(a);
      EXPECT_TRUE(out_within(out, TESSERA_F32, want.out, want.spread));
    }
  }
}

TEST_P(Merge, OfPartialsMatchesTheOracle) {
  for (const Case& c : kCases) {
    for (tessera_dtype dtype : kFloats) {
      SCOPED_TRACE(testing::Message() << c.count << " shards, dim " << c.dim << ", " << dtype_name(dtype));
      const Shards shards = make_shards(c.count, c.leading, c.dim, dtype, c.gaps, 12);
      const auto o = views(shards.o), lses = views(shards.m);
      Shape full = c.leading;
      full.push_back(c.dim);
      const TestTensor out(dtype, full, c.gaps ? gappy_strides(full, 1) : dense_strides(full));
      const TestTensor lse(TESSERA_F32, c.leading, c.gaps ? gappy_strides(c.leading, 3) : dense_strides(c.leading));
      const tessera_merge_states_args a = {o.data(), lses.data(), c.count, out, lse};
      ASSERT_EQ(tessera_merge_states(&a, &chosen), TESSERA_OK) << tessera_last_error();
      expect_written(out, "out");
      expect_written(lse, "lse");
      const reference::Merge want = reference::merge_states(a);
      EXPECT_TRUE(out_within(out, TESSERA_F32, want.out, want.spread));
      EXPECT_TRUE(log_within("lse", lse, TESSERA_F32, want.lse, std::vector<double>(want.lse.size(), 100)));
    }
  }
}

// The whole operators, ready to be spoilt.
struct Merges {
  Shards shards = make_shards(3, {2, 5, 4}, 16, TESSERA_F32, false, 13);
  std::vector<tessera_tensor> o = views(shards.o), l = views(shards.l), m = views(shards.m);
  TestTensor out{TESSERA_F32, {2, 5, 4, 16}}, lse{TESSERA_F32, {2, 5, 4}};

  tessera_cp_merge_args cp() const { return {o.data(), l.data(), m.data(), 3, out}; }
  tessera_merge_states_args states() const { return {o.data(), m.data(), 3, out, lse}; }
};

TEST_P(Merge, IsTheSameForEveryExecutorAndBackendsAgree) {
  Merges x;
  const auto run = [&](const tessera_context& context) {
    x.out.clear();
    x.lse.clear();
    const auto a = x.cp();
    EXPECT_EQ(tessera_cp_merge(&a, &context), TESSERA_OK) << tessera_last_error();
    std::vector<uint32_t> bits = x.out.all_bits();
    const auto b = x.states();
    EXPECT_EQ(tessera_merge_states(&b, &context), TESSERA_OK) << tessera_last_error();
    for (const TestTensor* t : {&x.out, &x.lse}) {
      const auto more = t->all_bits();
      bits.insert(bits.end(), more.begin(), more.end());
    }
    return bits;
  };
  const auto want = run(chosen);
  for (int n : {1, 2, 3, 7}) {
    tessera_context context = chosen;
    context.executor.kind = TESSERA_EXECUTOR_THREADS;
    context.executor.num_threads = n;
    EXPECT_EQ(run(context), want) << n;
  }
  tessera_context reference = {};
  reference.backend = TESSERA_BACKEND_REFERENCE;
  run(reference);
  const reference::Merge merge = reference::merge_states(x.states());
  EXPECT_TRUE(out_within(x.out, TESSERA_F32, merge.out, merge.spread));
  EXPECT_TRUE(log_within("lse", x.lse, TESSERA_F32, merge.lse, std::vector<double>(merge.lse.size(), 100)));
}

TEST_P(Merge, InPartsIsTheWhole) {
  Merges x;
  const auto a = x.cp();
  ASSERT_EQ(tessera_cp_merge(&a, &chosen), TESSERA_OK);
  const auto want = x.out.all_bits();
  for (int parts = 1; parts <= 5; ++parts) {
    x.out.clear();
    tessera_context context = chosen;
    context.executor.kind = TESSERA_EXECUTOR_PART;
    context.executor.num_parts = parts;
    for (context.executor.part = parts - 1; context.executor.part >= 0; --context.executor.part) {
      ASSERT_EQ(tessera_cp_merge(&a, &context), TESSERA_OK) << tessera_last_error();
    }
    EXPECT_EQ(x.out.all_bits(), want) << parts;
  }
}

TEST_P(Merge, EmptyShardsChangeNoBit) {
  Merges x;
  const auto a = x.cp();
  const auto b = x.states();
  ASSERT_EQ(tessera_cp_merge(&a, &chosen), TESSERA_OK);
  const auto want = x.out.all_bits();
  ASSERT_EQ(tessera_merge_states(&b, &chosen), TESSERA_OK);
  const auto want_states = x.out.all_bits();
  const auto want_lse = x.lse.all_bits();

  TestTensor o(TESSERA_F32, {2, 5, 4, 16}), l(TESSERA_F32, {2, 5, 4}), m(TESSERA_F32, {2, 5, 4});
  o.fill(std::nan(""));
  l.fill(0);
  m.fill(-kInf);
  for (std::vector<tessera_tensor>* list : {&x.o, &x.l, &x.m}) {
    const TestTensor& empty = list == &x.o ? o : list == &x.l ? l : m;
    list->insert(list->begin(), empty);
    list->push_back(empty);
  }
  tessera_cp_merge_args more = x.cp();
  more.num_states = 5;
  ASSERT_EQ(tessera_cp_merge(&more, &chosen), TESSERA_OK);
  EXPECT_EQ(x.out.all_bits(), want);
  tessera_merge_states_args more_states = x.states();
  more_states.num_states = 5;
  ASSERT_EQ(tessera_merge_states(&more_states, &chosen), TESSERA_OK);
  EXPECT_EQ(x.out.all_bits(), want_states);
  EXPECT_EQ(x.lse.all_bits(), want_lse);
}

TEST_P(Merge, NoShardHasAKey) {
  Merges x;
  for (TestTensor& m : x.shards.m) m.fill(-kInf);
  for (TestTensor& o : x.shards.o) o.fill(std::nan(""));
  const auto a = x.cp();
  ASSERT_EQ(tessera_cp_merge(&a, &chosen), TESSERA_OK);
  for (int64_t i = 0; i < x.out.elements(); ++i) ASSERT_EQ(x.out.bits(i), 0u);
  x.out.clear();
  const auto b = x.states();
  ASSERT_EQ(tessera_merge_states(&b, &chosen), TESSERA_OK);
  for (int64_t i = 0; i < x.out.elements(); ++i) ASSERT_EQ(x.out.bits(i), 0u);
  for (int64_t i = 0; i < x.lse.elements(); ++i) ASSERT_EQ(x.lse.get(i), -kInf);
}

TEST_P(Merge, ANanReachesItsRowAlone) {
  Merges x;
  x.shards.m[1].fill(1);
  const auto a = x.states();
  ASSERT_EQ(tessera_merge_states(&a, &chosen), TESSERA_OK);
  const auto want = x.out.all_bits();
  x.shards.o[1].set(7 * 16 + 3, std::nan(""));
  ASSERT_EQ(tessera_merge_states(&a, &chosen), TESSERA_OK);
  for (int64_t i = 0; i < x.out.elements(); ++i) {
    if (i == 7 * 16 + 3) {
      EXPECT_TRUE(std::isnan(x.out.get(i)));
    } else {
      ASSERT_EQ(x.out.bits(i), want[static_cast<size_t>(i)]) << i;
    }
  }
}

// ---- Errors --------------------------------------------------------------------------------------------------------

void expect_error(tessera_status got, tessera_status want, const std::string& op, const std::string& argument,
                  const Merges& x) {
  const std::string message = tessera_last_error();
  EXPECT_EQ(got, want) << argument << ": " << message;
  EXPECT_EQ(message.rfind(op + ": ", 0), 0u) << message;
  EXPECT_TRUE(names(message, argument)) << "does not name " << argument << ": " << message;
  EXPECT_TRUE(x.out.untouched()) << argument;
  EXPECT_TRUE(x.lse.untouched()) << argument;
}

void refuse_cp(tessera_status status, const std::string& argument,
               const std::function<void(Merges&, tessera_cp_merge_args&)>& spoil) {
  Merges x;
  tessera_cp_merge_args a = x.cp();
  spoil(x, a);
  expect_error(tessera_cp_merge(&a, nullptr), status, "cp_merge", argument, x);
}
void refuse_states(tessera_status status, const std::string& argument,
                   const std::function<void(Merges&, tessera_merge_states_args&)>& spoil) {
  Merges x;
  tessera_merge_states_args a = x.states();
  spoil(x, a);
  expect_error(tessera_merge_states(&a, nullptr), status, "merge_states", argument, x);
}

TEST(MergeErrors, CpMerge) {
  constexpr tessera_status kInvalid = TESSERA_INVALID_ARGUMENT;
  constexpr tessera_status kType = TESSERA_TYPE_ERROR;
  refuse_cp(kInvalid, "num_states", [](Merges&, auto& a) { a.num_states = 0; });
  refuse_cp(kInvalid, "num_states", [](Merges&, auto& a) { a.num_states = -1; });
  refuse_cp(kInvalid, "o", [](Merges&, auto& a) { a.o = nullptr; });
  refuse_cp(kInvalid, "l", [](Merges&, auto& a) { a.l = nullptr; });
  refuse_cp(kInvalid, "m", [](Merges&, auto& a) { a.m = nullptr; });
  refuse_cp(kType, "o", [](Merges& x, auto&) { x.o[1].dtype = TESSERA_BF16; });
  refuse_cp(kType, "l", [](Merges& x, auto&) { x.l[2].dtype = TESSERA_F16; });
  refuse_cp(kType, "m", [](Merges& x, auto&) { x.m[0].dtype = TESSERA_OTHER_DTYPE; });
  refuse_cp(kType, "out", [](Merges&, auto& a) { a.out.dtype = TESSERA_I32; });
  refuse_cp(kInvalid, "o", [](Merges& x, auto&) { x.o[1].shape[1] = 4; });
  refuse_cp(kInvalid, "o", [](Merges& x, auto&) { x.o[2].ndim = 0; });
  refuse_cp(kInvalid, "o", [](Merges& x, auto&) { x.o[2].data = nullptr; });
  refuse_cp(kInvalid, "l", [](Merges& x, auto&) { x.l[1].shape[2] = 1; });
  refuse_cp(kInvalid, "l", [](Merges& x, auto&) { x.l[1].ndim = 2; });
  refuse_cp(kInvalid, "m", [](Merges& x, auto&) { x.m[1].shape[0] = 3; });
  refuse_cp(kInvalid, "m", [](Merges& x, auto&) { x.m[1].stride[0] = -1; });
  refuse_cp(kInvalid, "out", [](Merges&, auto& a) { a.out = {}; });
  refuse_cp(kInvalid, "out", [](Merges&, auto& a) { a.out.shape[3] = 8; });
  refuse_cp(kInvalid, "out", [](Merges&, auto& a) { a.out.stride[0] = 0; });
  refuse_cp(kInvalid, "out", [](Merges& x, auto& a) { a.out.data = x.o[1].data; });
  refuse_cp(kInvalid, "out", [](Merges& x, auto& a) { a.out.data = x.l[2].data; });
  refuse_cp(kInvalid, "out", [](Merges& x, auto& a) { a.out.data = x.m[0].data; });
  EXPECT_EQ(tessera_cp_merge(nullptr, nullptr), kInvalid);
}

TEST(MergeErrors, MergeStates) {
  constexpr tessera_status kInvalid = TESSERA_INVALID_ARGUMENT;
  constexpr tessera_status kType = TESSERA_TYPE_ERROR;
  refuse_states(kInvalid, "num_states", [](Merges&, auto& a) { a.num_states = 0; });
  refuse_states(kInvalid, "partial_out", [](Merges&, auto& a) { a.partial_out = nullptr; });
  refuse_states(kInvalid, "partial_lse", [](Merges&, auto& a) { a.partial_lse = nullptr; });
  refuse_states(kType, "out", [](Merges& x, auto&) { x.o[1].dtype = TESSERA_BF16; });
  refuse_states(kType, "lse", [](Merges& x, auto&) { x.m[2].dtype = TESSERA_F16; });
  refuse_states(kType, "out", [](Merges&, auto& a) { a.out.dtype = TESSERA_BF16; });
  refuse_states(kType, "lse", [](Merges&, auto& a) { a.lse.dtype = TESSERA_BF16; });
  refuse_states(kInvalid, "out", [](Merges& x, auto&) { x.o[1].shape[3] = 8; });
  refuse_states(kInvalid, "lse", [](Merges& x, auto&) { x.m[1].shape[0] = 1; });
  refuse_states(kInvalid, "out", [](Merges&, auto& a) { a.out = {}; });
  refuse_states(kInvalid, "lse", [](Merges&, auto& a) { a.lse = {}; });
  refuse_states(kInvalid, "lse", [](Merges&, auto& a) { a.lse.stride[1] = 0; });
  refuse_states(kInvalid, "out", [](Merges& x, auto& a) { a.out.data = x.o[0].data; });
  refuse_states(kInvalid, "lse", [](Merges& x, auto& a) { a.lse.data = x.m[1].data; });
  refuse_states(kInvalid, "lse", [](Merges&, auto& a) { a.lse.data = a.out.data; });
  EXPECT_EQ(tessera_merge_states(nullptr, nullptr), kInvalid);
}

}  // namespace
}  // namespace tessera::test
