// Packed and paged attention calls for tests. Rows, keys and pages that no request has keep the sentinel, which is a NaN
// and no block id: whoever reads them shows it.
#ifndef TESSERA_TESTS_MSA_ATTENTION_H_
#define TESSERA_TESTS_MSA_ATTENTION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "attention.h"
#include "paged.h"

namespace tessera::test {

using MsaArgs = tessera_msa_sparse_attention_args;

struct MsaCase {
  std::vector<int64_t> rows = {33};  // of each request
  std::vector<int64_t> keys = {129};
  int64_t kv_heads = 2;
  int64_t group = 2;
  int64_t dim = 16;
  int64_t dim_v = 16;
  int64_t block = 16;
  int64_t width = 4;  // ignored by kAll
  int64_t page = 0;   // page size; 0: packed keys
  int64_t gap = 0;    // rows and packed keys of nobody, before the first request and after the last
  bool causal = true;
  cases::Ids ids = cases::Ids::kMixed;
  cases::Offset offset = cases::Offset::kDefault;
  cases::Layout layout = cases::Layout::kDense;
  float scale = cases::kDefaultScale;

  int64_t requests() const { return static_cast<int64_t>(rows.size()); }
  int64_t heads() const { return kv_heads * group; }
  int64_t blocks(int64_t b) const { return (keys[static_cast<size_t>(b)] + block - 1) / block; }
  int64_t list_width() const {
    if (ids != cases::Ids::kAll) return width;
    int64_t most = 0;
    for (int64_t b = 0; b < requests(); ++b) most = std::max(most, blocks(b));
    return most;
  }
  int64_t total_rows() const { return std::accumulate(rows.begin(), rows.end(), 2 * gap); }
  int64_t total_keys() const { return std::accumulate(keys.begin(), keys.end(), 2 * gap); }
};

inline void PrintTo(const MsaCase& c, std::ostream* os) {
  *os << "rows";
  for (int64_t n : c.rows) *os << " " << n;
  *os << ", keys";
  for (int64_t n : c.keys) *os << " " << n;
  *os << ", Hkv " << c.kv_heads << ", G " << c.group << ", D " << c.dim << ", Dv " << c.dim_v << ", bs " << c.block
      << ", W " << c.list_width() << ", ps " << c.page << ", gap " << c.gap << (c.causal ? ", causal" : ", full")
      << ", ids " << static_cast<int>(c.ids) << ", offset " << static_cast<int>(c.offset) << ", layout "
      << static_cast<int>(c.layout) << ", scale " << c.scale;
}
inline std::string text(const MsaCase& c) { return testing::PrintToString(c); }

inline Shape strides_for(cases::Layout layout, const Shape& shape, size_t broadcast_axis, int64_t last = 1) {
  return layout == cases::Layout::kStrided     ? gappy_strides(shape, last)
         : layout == cases::Layout::kBroadcast ? broadcast_strides(shape, broadcast_axis)
                                               : dense_strides(shape);
}

struct Msa {
  MsaCase shape;
  tessera_dtype dtype = TESSERA_BF16;
  TestTensor q, k, v, ids, cu_q, cu_k, table, used, q_offset;
  float scale = 1;
  bool with_lse = true;

  MsaArgs args() const {
    MsaArgs a = {};
    a.q = q;
    a.k = k;
    a.v = v;
    a.q2k_indices = ids;
    a.sequences = {cu_q, 0, cu_k, table, used, q_offset};
    a.block_size = shape.block;
    a.mask = shape.causal ? TESSERA_MASK_CAUSAL : TESSERA_MASK_NONE;
    a.softmax_scale = shape.scale == cases::kDefaultScale ? nullptr : &scale;
    return a;
  }
  reference::Attention expected() const { return reference::attention(args()); }

  Output output() const {
    const Shape lse = {q.view().shape[0], q.view().shape[1]};
    const Shape out = {lse[0], lse[1], v.view().shape[v.view().ndim - 1]};
    const bool gaps = shape.layout == cases::Layout::kStrided;
    return {TestTensor(q.view().dtype, out, gaps ? gappy_strides(out, 1) : dense_strides(out)),
            TestTensor(TESSERA_F32, lse, gaps ? gappy_strides(lse, 2) : dense_strides(lse))};
  }
  MsaArgs args_into(const Output& to) const {
    MsaArgs a = args();
    a.out = to.out;
    if (with_lse) a.lse = to.lse;
    return a;
  }
  Output run(const tessera_context& context = {}) const {
    const Output to = output();
    const MsaArgs a = args_into(to);
    EXPECT_EQ(tessera_msa_sparse_attention(&a, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to.out, "out");
    if (with_lse) expect_clean(to.lse, "lse");
    return to;
  }

  // ---- What a row sees, straight from the case -------------------------------------------------------------------

  int64_t first_row(int64_t b) const { return std::accumulate(shape.rows.begin(), shape.rows.begin() + b, shape.gap); }
  int64_t first_key(int64_t b) const { return std::accumulate(shape.keys.begin(), shape.keys.begin() + b, shape.gap); }
  int64_t rows_of(int64_t b) const { return shape.rows[static_cast<size_t>(b)]; }
  int64_t keys_of(int64_t b) const { return shape.keys[static_cast<size_t>(b)]; }
  int64_t position(int64_t b, int64_t t) const {
    const bool given = q_offset.view().ndim != 0;
    return t + (given ? static_cast<int64_t>(q_offset.get(b)) : keys_of(b) - rows_of(b));
  }
  bool sees(int64_t b, int64_t kv_head, int64_t t, int64_t key) const {
    if (shape.causal && key > position(b, t)) return false;
    const int64_t width = shape.list_width();
    const int64_t first = (kv_head * shape.total_rows() + first_row(b) + t) * width;
    for (int64_t w = 0; w < width; ++w) {
      if (static_cast<int64_t>(ids.get(first + w)) == key / shape.block) return true;
    }
    return false;
  }
  bool used_key(int64_t b, int64_t kv_head, int64_t key) const {
    for (int64_t t = 0; t < rows_of(b); ++t) {
      if (sees(b, kv_head, t, key)) return true;
    }
    return false;
  }
  // Index among the rows of k and of v.
  int64_t key_row(int64_t b, int64_t kv_head, int64_t key) const {
    if (shape.page == 0) return (first_key(b) + key) * shape.kv_heads + kv_head;
    const auto page = static_cast<int64_t>(table.get(b * table.view().shape[1] + key / shape.page));
    return (page * shape.kv_heads + kv_head) * shape.page + key % shape.page;
  }
};

inline void fill_row(TestTensor* t, int64_t row, double value) {
  const int64_t dim = t->values().last_size();
  for (int64_t d = 0; d < dim; ++d) t->set(row * dim + d, value);
}

// The same call with its keys in pages.
inline Msa in_pages(const Msa& packed, int64_t page) {
  const MsaCase& c = packed.shape;
  const bool gaps = c.layout == cases::Layout::kStrided;
  const int64_t most = c.keys.empty() ? 0 : *std::max_element(c.keys.begin(), c.keys.end());
  const auto paged_rows = [&](const TestTensor& rows) {
    const int64_t dim = rows.values().last_size(), row = c.kv_heads * dim;
    TestTensor batch(packed.dtype, {c.requests(), most, c.kv_heads, dim});
    for (int64_t b = 0; b < c.requests(); ++b) {
      for (int64_t i = 0; i < packed.keys_of(b) * row; ++i) {
        batch.set(b * most * row + i, rows.get(packed.first_key(b) * row + i));
      }
    }
    return in_pages(batch, page, c.keys, std::numeric_limits<double>::quiet_NaN(), gaps);
  };
  const Paged k = paged_rows(packed.k), v = paged_rows(packed.v);
  Msa paged = packed;
  paged.shape.page = page;
  paged.cu_k = {};
  paged.k = k.k;
  paged.v = v.k;
  paged.table = k.page_table;
  paged.used = k.seqused_k;
  return paged;
}

inline Msa make_msa(const MsaCase& c, tessera_dtype dtype, uint64_t stream = 0) {
  Random random(stream);
  Msa m;
  m.shape = c;
  m.shape.page = 0;
  m.dtype = dtype;
  m.scale = c.scale;
  // `rows` rows of it, from the gap on, are filled.
  const auto tensor = [&](int64_t rows, int64_t heads, int64_t dim) {
    const Shape of = {rows, heads, dim};
    TestTensor t(dtype, of, strides_for(c.layout, of, 1));
    for (int64_t i = c.gap * heads * dim; i < (rows - c.gap) * heads * dim; ++i) t.set(i, random.normal());
    return t;
  };
  m.q = tensor(c.total_rows(), c.heads(), c.dim);
  m.k = tensor(c.total_keys(), c.kv_heads, c.dim);
  m.v = tensor(c.total_keys(), c.kv_heads, c.dim_v);
  const bool gaps = c.layout == cases::Layout::kStrided;
  std::vector<int64_t> cu_q = {c.gap}, cu_k = {c.gap};
  for (int64_t n : c.rows) cu_q.push_back(cu_q.back() + n);
  for (int64_t n : c.keys) cu_k.push_back(cu_k.back() + n);
  m.cu_q = ints(cu_q, gaps ? 3 : 1);
  m.cu_k = ints(cu_k, gaps ? 2 : 1);

  const int64_t width = c.list_width();
  const Shape ids = {c.kv_heads, c.total_rows(), width};
  m.ids = TestTensor(TESSERA_I32, ids, strides_for(c.layout, ids, 0, 2));
  std::vector<int64_t> list(static_cast<size_t>(width));
  for (int64_t h = 0; h < c.kv_heads; ++h) {
    for (int64_t b = 0; b < c.requests(); ++b) {
      for (int64_t t = 0; t < m.rows_of(b); ++t) {
        if (c.ids == cases::Ids::kAll) {
          for (int64_t w = 0; w < width; ++w) list[static_cast<size_t>(w)] = w < c.blocks(b) ? w : -1;
        } else {
          fill_list({.keys = m.keys_of(b), .block = c.block, .width = width, .ids = c.ids}, random, list.data());
        }
        const int64_t first = (h * c.total_rows() + m.first_row(b) + t) * width;
        for (int64_t w = 0; w < width; ++w) m.ids.set(first + w, static_cast<double>(list[static_cast<size_t>(w)]));
      }
    }
  }
  if (c.offset == cases::Offset::kPerRequest) {
    std::vector<int64_t> offsets;
    for (int64_t b = 0; b < c.requests(); ++b) {
      const int64_t choices[] = {-m.rows_of(b) / 2, m.keys_of(b) / 2, m.keys_of(b) + 5, -m.rows_of(b) - 3};
      offsets.push_back(choices[b % 4]);
    }
    m.q_offset = ints(offsets, gaps ? 3 : 1);
  }
  return c.page == 0 ? m : in_pages(m, c.page);
}

inline void expect_within(const Output& got, tessera_dtype dtype, const reference::Attention& want) {
  EXPECT_TRUE(out_within(got.out, dtype, want.out, want.spread, want.reach));
  EXPECT_TRUE(log_within("lse", got.lse, dtype, want.lse, want.reach));
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_MSA_ATTENTION_H_
