// append_kv moves bits to the named slots and touches nothing else, in both layouts and on every executor.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "attention.h"
#include "kv_cache.h"

namespace tessera::test {
namespace {

enum class Slots {
  kInOrder,    // one behind the other, from the middle of a page on
  kShuffled,   // all different
  kHostile,    // any slot, several times, among numbers that are none
  kOneForAll,  // the last row stays
  kBackwards,  // each row before the last one
};

struct Case {
  int64_t rows = 37;
  int64_t heads = 2;
  int64_t dim = 16;
  int64_t dim_v = 16;
  int64_t pages = 5;
  int64_t page_size = 16;
  Slots slots = Slots::kHostile;
  bool gaps = false;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << "n " << c.rows << ", Hkv " << c.heads << ", D " << c.dim << ", Dv " << c.dim_v << ", P " << c.pages << ", ps "
      << c.page_size << ", slots " << static_cast<int>(c.slots) << (c.gaps ? ", gaps" : "");
}

std::vector<int64_t> make_slots(const Case& c, Random& random) {
  const int64_t capacity = c.pages * c.page_size;
  const int64_t none[] = {-1, INT_MIN, INT_MAX, capacity, -capacity, capacity + 1};
  const auto hostile = [&] { return capacity == 0 || random.chance(4) ? random.pick(none) : random.below(capacity); };
  std::vector<int64_t> order(static_cast<size_t>(capacity));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[static_cast<size_t>(random.below(i))]);
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < c.rows; ++i) {
    switch (c.slots) {
      case Slots::kInOrder: slots.push_back(c.page_size / 2 + i); break;
      case Slots::kShuffled: slots.push_back(i < capacity ? order[static_cast<size_t>(i)] : -1); break;
      case Slots::kHostile: slots.push_back(hostile()); break;
      case Slots::kOneForAll: slots.push_back(capacity / 2); break;
      case Slots::kBackwards: slots.push_back(capacity - 1 - i); break;
    }
  }
  return slots;
}

// Every pattern of bits is as good as any other.
void fill_bits(const TestTensor& t, Random& random) {
  const tessera_tensor& view = t.view();
  const size_t item = view.dtype == TESSERA_F32 ? 4 : 2;
  for (int64_t i = 0; i < t.elements(); ++i) {
    int64_t index = i, offset = 0;
    for (int axis = view.ndim - 1; axis >= 0; index /= view.shape[axis--]) {
      offset += index % view.shape[axis] * view.stride[axis];
    }
    const uint64_t bits = random.next();
    std::memcpy(static_cast<char*>(view.data) + static_cast<size_t>(offset) * item, &bits, item);
  }
}

struct Caches {
  TestTensor k, v;
};

struct Append {
  Append(const Case& c, tessera_dtype of, bool is_packed) : shape(c), dtype(of), packed(is_packed) {
    Random random(static_cast<uint64_t>(c.rows + c.dim));
    const auto rows = [&](int64_t dim) {
      const Shape of_rows = {c.rows, c.heads, dim};
      TestTensor t(dtype, of_rows, c.gaps ? gappy_strides(of_rows, 1) : dense_strides(of_rows));
      fill_bits(t, random);
      return t;
    };
    k = rows(c.dim);
    v = rows(c.dim_v);
    slots = TestTensor(TESSERA_I32, {c.rows}, {c.gaps ? 3 : 1});
    const std::vector<int64_t> numbers = make_slots(c, random);
    for (int64_t i = 0; i < c.rows; ++i) slots.set(i, static_cast<double>(numbers[static_cast<size_t>(i)]));
  }

  // Not yet written.
  Caches caches() const {
    const auto cache = [&](bool values, int64_t dim) {
      const Shape s = packed ? packed_shape(dtype, values, shape.pages, shape.heads, shape.page_size, dim)
                             : Shape{shape.pages, shape.heads, shape.page_size, dim};
      if (packed) return TestTensor(dtype, s, packed_strides(s, shape.gaps));
      return TestTensor(dtype, s, shape.gaps ? gappy_strides(s, 1) : dense_strides(s));
    };
    return {cache(false, shape.dim), cache(true, shape.dim_v)};
  }
  tessera_append_kv_args args(const Caches& to) const { return {k, v, slots, to.k, to.v}; }

  // The bits that one of the caches then has, by the definition.
  std::vector<uint32_t> expected(const TestTensor& cache, const TestTensor& from, bool values) const {
    const int64_t dim = values ? shape.dim_v : shape.dim;
    std::vector<uint32_t> bits = cache.all_bits();
    const auto at = [&](int64_t page, int64_t head, int64_t j, int64_t d) -> uint32_t& {
      const int64_t index = packed ? packed_index(cache, values, page, head, j, d)
                                   : ((page * shape.heads + head) * shape.page_size + j) * dim + d;
      return bits[static_cast<size_t>(index)];
    };
    for (int64_t i = 0; i < shape.rows; ++i) {
      const auto slot = static_cast<int64_t>(slots.get(i));
      if (slot < 0 || slot >= shape.pages * shape.page_size) continue;
      for (int64_t head = 0; head < shape.heads; ++head) {
        const int64_t page = slot / shape.page_size, j = slot % shape.page_size;
        for (int64_t d = 0; d < dim; ++d) at(page, head, j, d) = from.bits((i * shape.heads + head) * dim + d);
        if (packed && !values && dim % packed_elements(dtype) != 0) at(page, head, j, dim) = 0;
      }
    }
    return bits;
  }

  void check(const tessera_context& context) const {
    const Caches got = caches(), clean = caches();
    const tessera_append_kv_args a = args(got);
    tessera_context part = context;
    for (int32_t i = 0; i < std::max(context.executor.num_parts, 1); ++i) {
      part.executor.part = i;
      ASSERT_EQ(tessera_append_kv(&a, &part), TESSERA_OK) << tessera_last_error();
    }
    EXPECT_TRUE(got.k.all_bits() == expected(clean.k, k, false)) << "k_cache";
    EXPECT_TRUE(got.v.all_bits() == expected(clean.v, v, true)) << "v_cache";
    EXPECT_TRUE(got.k.gaps_untouched() && got.v.gaps_untouched());
  }

  Case shape;
  tessera_dtype dtype;
  bool packed;
  TestTensor k, v, slots;
};

std::vector<tessera_context> contexts() {
  std::vector<tessera_context> all(5);
  all[1].backend = TESSERA_BACKEND_REFERENCE;
  all[2].executor = {TESSERA_EXECUTOR_THREADS, 1, 0, 0, nullptr, nullptr};
  all[3].executor = {TESSERA_EXECUTOR_THREADS, 3, 0, 0, nullptr, nullptr};
  all[4].executor = {TESSERA_EXECUTOR_PART, 0, 0, 3, nullptr, nullptr};
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all = {
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
  for (const Case& c : cases()) {
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
  for (const Case& c : {Case{}, Case{.dim = 17, .page_size = 24, .gaps = true}, Case{.rows = 1500, .pages = 90}}) {
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

// ---- Errors ----

using Args = tessera_append_kv_args;

void refused(tessera_status status, const std::string& message, bool packed, const std::function<void(Args&)>& spoil) {
  SCOPED_TRACE(message);
  const Append call({.dim_v = 8}, TESSERA_BF16, packed);
  for (const tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
    const Caches to = call.caches();
    Args a = call.args(to);
    spoil(a);
    tessera_context context = {};
    context.backend = backend;
    EXPECT_EQ(tessera_append_kv(&a, &context), status);
    EXPECT_EQ(std::string(tessera_last_error()).rfind("append_kv: " + message, 0), 0u) << tessera_last_error();
    EXPECT_TRUE(to.k.untouched() && to.v.untouched());
  }
}
void invalid(const std::string& message, bool packed, const std::function<void(Args&)>& spoil) {
  refused(TESSERA_INVALID_ARGUMENT, message, packed, spoil);
}

TEST(AppendKvErrors, Rows) {
  for (const bool packed : {false, true}) {
    invalid("k [n, Hkv, D] is missing", packed, [](Args& a) { a.k = {}; });
    invalid("v is missing; expected both of v and v_cache, or neither", packed, [](Args& a) { a.v = {}; });
    invalid("v_cache is missing; expected both of v and v_cache, or neither", packed, [](Args& a) { a.v_cache = {}; });
    invalid("k_cache", packed, [](Args& a) {
      a.v = a.v_cache = {};
      a.k_cache.shape[0] = -1;
    });
    invalid("slots [n] is missing", packed, [](Args& a) { a.slots = {}; });
    invalid("k has 2 axes", packed, [](Args& a) { a.k.ndim = 2; });
    invalid("slots has 2 axes", packed, [](Args& a) { a.slots.ndim = 2; });
    invalid("v [36, 2, 8] has size 36 in axis 0; expected 37 (n of k)", packed, [](Args& a) { a.v.shape[0] = 36; });
    invalid("v [37, 1, 8] has size 1 in axis 1; expected 2 (Hkv of k)", packed, [](Args& a) { a.v.shape[1] = 1; });
    invalid("slots [36] has size 36 in axis 0; expected 37 (n of k)", packed, [](Args& a) { a.slots.shape[0] = 36; });
    invalid("k has stride 2 in its last axis", packed, [](Args& a) { a.k.stride[2] = 2; });
    invalid("v has stride 2 in its last axis", packed, [](Args& a) { a.v.stride[2] = 2; });
    invalid("k and v need at least one feature", packed, [](Args& a) { a.k.shape[2] = 0; });
    invalid("k and v need at least one feature", packed, [](Args& a) { a.v.shape[2] = 0; });
    refused(TESSERA_TYPE_ERROR, "k is int32", packed, [](Args& a) { a.k.dtype = TESSERA_I32; });
    refused(TESSERA_TYPE_ERROR, "v is float16 but k is bfloat16", packed, [](Args& a) { a.v.dtype = TESSERA_F16; });
    refused(TESSERA_TYPE_ERROR, "slots is float32", packed, [](Args& a) { a.slots.dtype = TESSERA_F32; });
  }
}

TEST(AppendKvErrors, Caches) {
  for (const bool packed : {false, true}) {
    invalid("k_cache [P, Hkv, ps, D] or [P, Hkv, ceil(D/e), ps, e] is missing", packed,
            [](Args& a) { a.k_cache = {}; });
    invalid("k_cache has 3 axes", packed, [](Args& a) { a.k_cache.ndim = 3; });
    invalid(packed ? "v_cache has 4 axes" : "v_cache has 5 axes", packed,
            [=](Args& a) { a.v_cache.ndim = packed ? 4 : 5; });
    invalid("v_cache has stride 3 in its last axis", packed, [=](Args& a) { a.v_cache.stride[packed ? 4 : 3] = 3; });
    invalid("k_cache axis 0 has negative stride", packed, [](Args& a) { a.k_cache.stride[0] = -1; });
    invalid("k_cache overlaps itself", packed, [](Args& a) { a.k_cache.stride[1] = 0; });
    invalid("v_cache overlaps itself", packed, [](Args& a) { a.v_cache.stride[0] = 8; });
    invalid("k_cache overlaps k", packed, [](Args& a) { a.k.data = a.k_cache.data; });
    invalid("k_cache overlaps v", packed, [](Args& a) { a.v.data = a.k_cache.data; });
    invalid("v_cache overlaps k", packed, [](Args& a) { a.k.data = a.v_cache.data; });
    invalid("v_cache overlaps slots", packed, [](Args& a) { a.slots.data = a.v_cache.data; });
    invalid("v_cache overlaps k_cache", packed, [](Args& a) { a.v_cache.data = a.k_cache.data; });
    refused(TESSERA_TYPE_ERROR, "k_cache is float16 but k is bfloat16", packed,
            [](Args& a) { a.k_cache.dtype = TESSERA_F16; });
    refused(TESSERA_TYPE_ERROR, "v_cache is int32", packed, [](Args& a) { a.v_cache.dtype = TESSERA_I32; });
  }
}

TEST(AppendKvErrors, RowMajorSizes) {
  const auto size = [](int axis, int64_t n, const std::string& message, tessera_tensor Args::*cache) {
    invalid(message, false, [=](Args& a) { (a.*cache).shape[axis] = n; });
  };
  size(1, 1, "k_cache [5, 1, 16, 16] has size 1 in axis 1; expected 2 (Hkv of k)", &Args::k_cache);
  size(2, 15, "v_cache [5, 2, 16, 8] has size 16 in axis 2; expected 15 (ps of k_cache)", &Args::k_cache);
  size(3, 15, "k_cache [5, 2, 16, 15] has size 15 in axis 3; expected 16 (D of k)", &Args::k_cache);
  size(0, 4, "v_cache [4, 2, 16, 8] has size 4 in axis 0; expected 5 (P of k_cache)", &Args::v_cache);
  size(1, 1, "v_cache [5, 1, 16, 8] has size 1 in axis 1; expected 2 (Hkv of k)", &Args::v_cache);
  size(3, 7, "v_cache [5, 2, 16, 7] has size 7 in axis 3; expected 8 (Dv of v)", &Args::v_cache);
}

TEST(AppendKvErrors, PackedSizes) {
  const auto size = [](int axis, int64_t n, const std::string& message, tessera_tensor Args::*cache) {
    invalid(message, true, [=](Args& a) { (a.*cache).shape[axis] = n; });
  };
  size(1, 1, "k_cache [5, 1, 8, 16, 2] has size 1 in axis 1; expected 2 (Hkv of k)", &Args::k_cache);
  size(2, 7, "k_cache [5, 2, 7, 16, 2] has size 7 in axis 2; expected 8 (ceil(D/e), D of k)", &Args::k_cache);
  size(3, 17, "v_cache [5, 2, 8, 8, 2] has size 8 in axis 2; expected 9 (ceil(ps/e), ps of k_cache)", &Args::k_cache);
  size(4, 1, "k_cache [5, 2, 8, 16, 1] has size 1 in axis 4; expected 2 (e, the elements in 4 bytes)", &Args::k_cache);
  size(0, 4, "v_cache [4, 2, 8, 8, 2] has size 4 in axis 0; expected 5 (P of k_cache)", &Args::v_cache);
  size(3, 7, "v_cache [5, 2, 8, 7, 2] has size 7 in axis 3; expected 8 (Dv of v)", &Args::v_cache);
  size(4, 1, "v_cache [5, 2, 8, 8, 1] has size 1 in axis 4; expected 2 (e, the elements in 4 bytes)", &Args::v_cache);
  invalid("k_cache has stride 4 in axis 3; its last two axes are dense (stride 2)", true,
          [](Args& a) { a.k_cache.stride[3] = 4; });
}

TEST(AppendKvErrors, Calls) {
  EXPECT_EQ(tessera_append_kv(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(tessera_last_error()), "append_kv: args is null");
  const Append call({}, TESSERA_F32, false);
  const Caches to = call.caches();
  const Args a = call.args(to);
  const tessera_context context = with_variant("avx7");
  EXPECT_EQ(tessera_append_kv(&a, &context), TESSERA_INVALID_ARGUMENT);
  EXPECT_TRUE(to.k.untouched() && to.v.untouched());
}

}  // namespace
}  // namespace tessera::test
