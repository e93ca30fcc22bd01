// append_kv moves bits to the named slots and touches nothing else, in both layouts and on every executor.
#include "append_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tessera::test {
namespace {

std::vector<tessera_context> contexts() {
  std::vector<tessera_context> all(5);
  all[1].backend = TESSERA_BACKEND_REFERENCE;
  all[2].executor = {TESSERA_EXECUTOR_THREADS, 1, 0, 0, nullptr, nullptr};
  all[3].executor = {TESSERA_EXECUTOR_THREADS, 3, 0, 0, nullptr, nullptr};
  all[4].executor = {TESSERA_EXECUTOR_PART, 0, 0, 3, nullptr, nullptr};
  return all;
}

std::vector<AppendCase> cases() {
  std::vector<AppendCase> all = {
      {.rows = 0},
      {.heads = 0},
      {.pages = 0},
      {.page_size = 0},
      {.rows = 1, .heads = 1, .dim = 1, .dim_v = 1, .pages = 1, .page_size = 1, .slots = Slots::kInOrder},
      {.rows = 1500, .heads = 3, .dim = 64, .dim_v = 72, .pages = 40, .page_size = 24, .slots = Slots::kInOrder},
      {.rows = 1500, .heads = 1, .dim = 128, .dim_v = 128, .pages = 9, .page_size = 64, .slots = Slots::kHostile},
  };
  for (const Slots slots : {Slots::kInOrder, Slots::kHostile}) {
    for (const int64_t page_size : {1, 2, 3, 16, 24, 64, 128, 256}) {
      all.push_back({.rows = 70, .dim = 17, .dim_v = 9, .page_size = page_size, .slots = slots, .gaps = true});
    }
    for (const int64_t dim : {1, 2, 3, 15, 63, 128, 513}) {
      all.push_back({.dim = dim, .dim_v = 8, .slots = slots, .gaps = true});
      all.push_back({.dim = 7, .dim_v = dim, .page_size = 5, .slots = slots});
    }
  }
  for (const Slots slots : {Slots::kShuffled, Slots::kOneForAll, Slots::kBackwards}) {
    all.push_back({.page_size = 24, .slots = slots});
    all.push_back({.dim = 9, .dim_v = 3, .page_size = 9, .slots = slots, .gaps = true});
  }
  return all;
}

class AppendKv : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Layouts, AppendKv, testing::Bool(),
                         [](const auto& test) { return test.param ? "Packed" : "RowMajor"; });

TEST_P(AppendKv, MovesBitsToTheNamedSlotsAndTouchesNothingElse) {
  for (const AppendCase& c : cases()) {
    for (const tessera_dtype dtype : kFloats) {
      SCOPED_TRACE(testing::PrintToString(c) + ", " + dtype_name(dtype));
      const Append call(c, dtype, GetParam());
      for (const tessera_context& context : contexts()) call.check(context);
      if (HasFailure()) return;
    }
  }
}

// One row for every slot, one head for all heads, one slot for all rows.
TEST_P(AppendKv, TakesBroadcastInputs) {
  for (const tessera_dtype dtype : kFloats) {
    Append call({.slots = Slots::kShuffled}, dtype, GetParam());
    const Shape rows = {37, 2, 16};
    call.k = TestTensor(dtype, rows, broadcast_strides(rows, 0));
    call.v = TestTensor(dtype, rows, broadcast_strides(rows, 1));
    Random random(7);
    fill_bits(call.k, random);
    fill_bits(call.v, random);
    for (const tessera_context& context : contexts()) call.check(context);
    call.slots = TestTensor(TESSERA_I32, {37}, {0});
    call.slots.set(0, 19);
    for (const tessera_context& context : contexts()) call.check(context);
  }
}

// K and V side by side in one buffer, as some engines keep them.
TEST(AppendKvForms, TakesCachesInOneBuffer) {
  const Append call({.dim = 24, .dim_v = 8}, TESSERA_BF16, false);
  const Caches apart = call.caches();
  const tessera_append_kv_args want = call.args(apart);
  ASSERT_EQ(tessera_append_kv(&want, nullptr), TESSERA_OK) << tessera_last_error();
  const TestTensor both(TESSERA_BF16, {5, 2, 16, 32});
  tessera_append_kv_args a = want;
  a.k_cache = a.v_cache = both;
  a.k_cache.shape[3] = 24;
  a.v_cache.shape[3] = 8;
  a.v_cache.data = static_cast<char*>(a.v_cache.data) + 24 * 2;
  ASSERT_EQ(tessera_append_kv(&a, nullptr), TESSERA_OK) << tessera_last_error();
  for (int64_t i = 0; i < both.elements(); ++i) {
    const int64_t row = i / 32, d = i % 32;
    ASSERT_EQ(both.bits(i), d < 24 ? apart.k.bits(row * 24 + d) : apart.v.bits(row * 8 + d - 24)) << i;
  }
}

// An index cache has keys and no values.
TEST_P(AppendKv, WritesKeysAlone) {
  for (const AppendCase& c :
       {AppendCase{}, AppendCase{.dim = 17, .page_size = 24, .gaps = true}, AppendCase{.rows = 1500, .pages = 90}}) {
    for (const tessera_dtype dtype : kFloats) {
      SCOPED_TRACE(testing::PrintToString(c) + ", " + dtype_name(dtype));
      const Append call(c, dtype, GetParam());
      for (const tessera_context& context : contexts()) {
        const TestTensor got = call.caches().k, clean = call.caches().k;
        const tessera_append_kv_args a = {call.k, {}, call.slots, got, {}};
        tessera_context part = context;
        for (int32_t i = 0; i < std::max(context.executor.num_parts, 1); ++i) {
          part.executor.part = i;
          ASSERT_EQ(tessera_append_kv(&a, &part), TESSERA_OK) << tessera_last_error();
        }
        EXPECT_TRUE(got.all_bits() == call.expected(clean, call.k, false));
        EXPECT_TRUE(got.gaps_untouched());
      }
    }
  }
}

TEST(AppendKvForms, TheReferenceDoesAllPartsInThatOfNumberZero) {
  const Append call({}, TESSERA_F16, true);
  const Caches to = call.caches();
  const tessera_append_kv_args a = call.args(to);
  tessera_context context = {};
  context.backend = TESSERA_BACKEND_REFERENCE;
  for (const int32_t part : {1, 2, 0}) {
    context.executor = {TESSERA_EXECUTOR_PART, 0, part, 3, nullptr, nullptr};
    ASSERT_EQ(tessera_append_kv(&a, &context), TESSERA_OK) << tessera_last_error();
    EXPECT_EQ(to.k.untouched() && to.v.untouched(), part != 0);
  }
  EXPECT_TRUE(to.k.all_bits() == call.expected(call.caches().k, call.k, false));
}

TEST(AppendKvForms, EveryVariantIsTheSameCopy) {
  const Append call({}, TESSERA_F16, true);
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    const tessera_context context = with_variant(tessera_variant_name(i));
    if (tessera_variant_available(i) != 0) {
      call.check(context);
    } else {
      const Caches to = call.caches();
      const tessera_append_kv_args a = call.args(to);
      EXPECT_EQ(tessera_append_kv(&a, &context), TESSERA_NOT_IMPLEMENTED);
      EXPECT_TRUE(to.k.untouched() && to.v.untouched());
    }
  }
}

}  // namespace
}  // namespace tessera::test
