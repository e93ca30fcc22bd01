// Calls of append_kv for tests: rows of any bits, slots of every kind, and what the caches then have by the definition.
#ifndef TESSERA_TESTS_APPEND_KV_H_
#define TESSERA_TESTS_APPEND_KV_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>
#include <ostream>
#include <vector>

#include "attention.h"
#include "kv_cache.h"

namespace tessera::test {

enum class Slots {
  kInOrder,    // one behind the other, from the middle of a page on
  kShuffled,   // all different
  kHostile,    // any slot, several times, among numbers that are none
  kOneForAll,  // the last row stays
  kBackwards,  // each row before the last one
};

struct AppendCase {
  int64_t rows = 37;
  int64_t heads = 2;
  int64_t dim = 16;
  int64_t dim_v = 16;
  int64_t pages = 5;
  int64_t page_size = 16;
  Slots slots = Slots::kHostile;
  bool gaps = false;
};

inline void PrintTo(const AppendCase& c, std::ostream* os) {
  *os << "n " << c.rows << ", Hkv " << c.heads << ", D " << c.dim << ", Dv " << c.dim_v << ", P " << c.pages << ", ps "
      << c.page_size << ", slots " << static_cast<int>(c.slots) << (c.gaps ? ", gaps" : "");
}

inline std::vector<int64_t> make_slots(const AppendCase& c, Random& random) {
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
inline void fill_bits(const TestTensor& t, Random& random) {
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
  Append(const AppendCase& c, tessera_dtype of, bool is_packed) : shape(c), dtype(of), packed(is_packed) {
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

  AppendCase shape;
  tessera_dtype dtype;
  bool packed;
  TestTensor k, v, slots;
};

}  // namespace tessera::test

#endif  // TESSERA_TESTS_APPEND_KV_H_
