// An engine that appends the raw keys of several requests: its ring, its cache, and calls as it would make them.
#ifndef TESSERA_TESTS_QSA_APPEND_H_
#define TESSERA_TESTS_QSA_APPEND_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "qsa_keys.h"

namespace tessera::test {

using AppendKeysArgs = tessera_qsa_append_keys_args;

struct EngineCase {
  KeyCase keys;
  int64_t page_size = 0;   // 0: a dense cache
  int64_t drafts = 0;      // tokens that may be taken back
  bool head_axis = false;  // pages [P, ps, 1, D]
  bool positions = false;  // of their own, not the tokens' indices
};

inline void PrintTo(const EngineCase& c, std::ostream* os) {
  PrintTo(c.keys, os);
  *os << ", ps " << c.page_size << ", drafts " << c.drafts << (c.positions ? ", positions" : "");
}

// Requests whose tokens are those of a batch of raw keys, in the order of the batch.
struct Engine {
  Engine(const EngineCase& c, tessera_dtype dtype, uint64_t stream = 0) : shape(c), keys(c.keys, dtype, stream) {
    Random random(stream + 77);
    const int64_t b = c.keys.requests, blocks = c.keys.blocks(), gap = c.keys.gaps ? 2 : 1;
    const int64_t slots = b + 2;
    ring = maybe_gappy(dtype, {slots, c.keys.block - 1 + c.drafts, c.keys.dim}, c.keys.gaps);
    ring_slots = maybe_gappy(TESSERA_I32, {b}, c.keys.gaps, gap);
    const std::vector<int64_t> slot = shuffled(slots, random);
    for (int64_t i = 0; i < b; ++i) ring_slots.set(i, static_cast<double>(slot[static_cast<size_t>(i)]));
    if (c.page_size == 0) {
      cache = maybe_gappy(dtype, {b, blocks, c.keys.dim}, c.keys.gaps);
    } else {
      const int64_t max_pages = (blocks + c.page_size - 1) / c.page_size;
      const int64_t pages = b * max_pages + 3;
      const Shape flat = {pages, c.page_size, c.keys.dim}, with_head = {pages, c.page_size, 1, c.keys.dim};
      cache = maybe_gappy(dtype, c.head_axis ? with_head : flat, c.keys.gaps);
      page_table = maybe_gappy(TESSERA_I32, {b, max_pages}, c.keys.gaps, gap);
      const std::vector<int64_t> page = shuffled(pages, random);
      for (int64_t i = 0; i < b * max_pages; ++i) page_table.set(i, static_cast<double>(page[static_cast<size_t>(i)]));
    }
    if (c.positions) {
      keys.positions = TestTensor(TESSERA_I32, {b, c.keys.tokens});
      for (int64_t i = 0; i < keys.positions.elements(); ++i) {
        keys.positions.set(i, static_cast<double>(random.below(100000)));
      }
    }
    accepted.assign(static_cast<size_t>(b), 0);
  }

  static std::vector<int64_t> shuffled(int64_t n, Random& random) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[static_cast<size_t>(random.below(i))]);
    return order;
  }

  // Rows [from, from + n) of request b out of the batch; past its end, and from `real` rows on, NaN: drafts.
  void put_rows(TestTensor* to, int64_t row, int64_t b, int64_t from, int64_t n, int64_t real) const {
    const int64_t dim = shape.keys.dim, tokens = shape.keys.tokens;
    for (int64_t i = 0; i < n * dim; ++i) {
      const int64_t t = from + i / dim;
      const bool known = i / dim < real && t < tokens;
      to->set(row * dim + i, known ? keys.raw.get((b * tokens + t) * dim + i % dim) : NAN);
    }
  }

  // Requests get rows[b] more tokens, of which the first real[b] are accepted. As a batch, which takes equal rows, or
  // packed.
  void append(const std::vector<int64_t>& rows, const std::vector<int64_t>& real, bool packed,
              const tessera_context& context) {
    const int64_t b = shape.keys.requests, dim = shape.keys.dim;
    const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    TestTensor raw = packed ? maybe_gappy(keys.dtype, {total, dim}, shape.keys.gaps)
                            : maybe_gappy(keys.dtype, {b, rows[0], dim}, shape.keys.gaps);
    TestTensor cu(TESSERA_I32, {b + 1}), lens(TESSERA_I32, {b});
    int64_t row = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto request = static_cast<int64_t>(i);
      cu.set(request, static_cast<double>(row));
      lens.set(request, static_cast<double>(accepted[i]));
      put_rows(&raw, row, request, accepted[i], rows[i], real[i]);
      row += rows[i];
    }
    cu.set(b, static_cast<double>(row));
    const TestTensor positions = block_positions(total);
    const AppendKeysArgs a = {
        raw,       packed ? cu.view() : tessera_tensor{}, lens, keys.rule(), positions, {}, {}, ring, ring_slots, cache,
        page_table};
    call(a, context);
    for (size_t i = 0; i < rows.size(); ++i) accepted[i] = std::min(accepted[i] + real[i], shape.keys.tokens);
  }

  static void call(const AppendKeysArgs& a, const tessera_context& context) {
    tessera_context part = context;
    for (int32_t i = std::max(context.executor.num_parts, 1); i-- > 0;) {
      part.executor.part = i;
      ASSERT_EQ(tessera_qsa_append_keys(&a, &part), TESSERA_OK) << tessera_last_error();
    }
  }

  // Of the first tokens of the blocks that the next rows may complete.
  TestTensor block_positions(int64_t rows) const {
    if (!shape.positions) return {};
    const int64_t bs = shape.keys.block, tokens = shape.keys.tokens, m = (rows + bs - 1) / bs;
    TestTensor positions = maybe_gappy(TESSERA_I32, {shape.keys.requests, m}, shape.keys.gaps, shape.keys.gaps ? 2 : 1);
    for (int64_t i = 0; i < positions.elements(); ++i) {
      const int64_t b = i / m, t = (accepted[static_cast<size_t>(b)] / bs + i % m) * bs;
      positions.set(i, t < tokens ? keys.positions.get(b * tokens + t) : -7);
    }
    return positions;
  }

  // Row-major index of the first feature of block g.
  int64_t at(int64_t b, int64_t g) const {
    const int64_t* s = cache.view().shape;
    const int64_t ps = shape.page_size;
    if (ps == 0) return (b * s[1] + g) * shape.keys.dim;
    const auto page = static_cast<int64_t>(page_table.get(b * page_table.view().shape[1] + g / ps));
    return (page * ps + g % ps) * shape.keys.dim;
  }
  std::vector<uint32_t> block(int64_t b, int64_t g) const {
    std::vector<uint32_t> bits;
    for (int64_t d = 0; d < shape.keys.dim; ++d) bits.push_back(cache.bits(at(b, g) + d));
    return bits;
  }

  // The blocks of all accepted tokens have the bits that compressing the whole gives; nothing else has been written, but
  // what drafts may have.
  void expect_blocks(tessera_context context) const {
    context.executor = {};
    const TestTensor want = keys.compress(context);
    const int64_t dim = shape.keys.dim, blocks = shape.keys.blocks();
    const int64_t places = shape.page_size == 0 ? blocks : page_table.view().shape[1] * shape.page_size;
    std::vector<bool> free(static_cast<size_t>(cache.elements() / dim), true);
    for (int64_t b = 0; b < shape.keys.requests; ++b) {
      const int64_t complete = accepted[static_cast<size_t>(b)] / shape.keys.block;
      for (int64_t g = 0; g < places; ++g) {
        if (g < complete || shape.drafts > 0) free[static_cast<size_t>(at(b, g) / dim)] = false;
        for (int64_t d = 0; g < complete && d < dim; ++d) {
          ASSERT_EQ(cache.bits(at(b, g) + d), want.bits((b * blocks + g) * dim + d))
              << "request " << b << ", block " << g << ", feature " << d;
        }
      }
    }
    for (int64_t i = 0; i < cache.elements(); ++i) {
      ASSERT_FALSE(free[static_cast<size_t>(i / dim)] && cache.written(i)) << "slot " << i / dim;
    }
    EXPECT_TRUE(cache.gaps_untouched() && ring.gaps_untouched());
  }

  EngineCase shape;
  Keys keys;
  TestTensor ring, ring_slots, cache, page_table;
  std::vector<int64_t> accepted;  // tokens of each request
};

}  // namespace tessera::test

#endif  // TESSERA_TESTS_QSA_APPEND_H_
