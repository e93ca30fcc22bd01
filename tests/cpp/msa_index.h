// Calls of the indexer for tests: the same rows and keys as a batch, packed or in pages.
#ifndef TESSERA_TESTS_MSA_INDEX_H_
#define TESSERA_TESTS_MSA_INDEX_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attention.h"
#include "kv_cache.h"
#include "paged.h"
#include "selection.h"

namespace tessera::test {

enum class Form { kBatch, kPacked, kPaged, kPackedLayout };  // the last: pages in the packed layout

struct IndexCase {
  int64_t requests = 1;
  int64_t queries = 40;
  int64_t keys = 150;
  int64_t heads = 4;
  int64_t key_heads = 1;
  int64_t dim = 16;
  int64_t block = 16;
  bool reduce = false;
  bool packed_q = false;
  Form keys_form = Form::kBatch;
  int64_t page_size = 16;
  std::vector<int64_t> rows_of = {};  // packed rows: of each request, at most `queries`
  std::vector<int64_t> keys_of = {};  // packed or paged keys: of each request, at most `keys`
  cases::Offset offset = cases::Offset::kDefault;
  cases::Layout layout = cases::Layout::kDense;
  int64_t topk = 4;
  int64_t local = 1;
  int64_t init = 0;
  int64_t spare_blocks = 0;  // more (or fewer) columns of scores than there are blocks

  int64_t blocks() const { return std::max<int64_t>(0, keys / block + (keys % block != 0) + spare_blocks); }
  int64_t outputs() const { return reduce ? 1 : heads; }
};

inline void PrintTo(const IndexCase& c, std::ostream* out) {
  *out << "B " << c.requests << ", Sq " << c.queries << (c.packed_q ? " packed" : "") << ", Sk " << c.keys << ", form "
       << static_cast<int>(c.keys_form) << ", ps " << c.page_size << ", Hi " << c.heads << " on " << c.key_heads
       << (c.reduce ? " reduced" : "") << ", D " << c.dim << ", bs " << c.block << ", K " << c.topk << ", local "
       << c.local << ", init " << c.init << ", offset " << static_cast<int>(c.offset) << ", layout "
       << static_cast<int>(c.layout) << ", columns " << c.blocks();
}

// The first counts[b] rows of each request of a batch [B, S, H, D], one after the other.
inline TestTensor packed_rows(const TestTensor& batch, const std::vector<int64_t>& counts, bool gaps) {
  const int64_t* const s = batch.view().shape;
  int64_t total = 0;
  for (int64_t n : counts) total += n;
  const Shape shape = {total, s[2], s[3]};
  TestTensor packed(batch.view().dtype, shape, gaps ? gappy_strides(shape, 1) : dense_strides(shape));
  int64_t to = 0;
  for (int64_t b = 0; b < s[0]; ++b) {
    const int64_t first = b * s[1] * s[2] * s[3];
    for (int64_t i = 0; i < counts[static_cast<size_t>(b)] * s[2] * s[3]; ++i) packed.set(to++, batch.get(first + i));
  }
  return packed;
}

inline TestTensor cumulative(const std::vector<int64_t>& counts, bool gaps) {
  const auto entries = static_cast<int64_t>(counts.size()) + 1;
  TestTensor t(TESSERA_I32, {entries}, {gaps ? 3 : 1});
  t.set(0, 0);
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    t.set(at + 1, t.get(at) + static_cast<double>(counts[i]));
  }
  return t;
}

struct Index {
  IndexCase shape;
  tessera_dtype dtype = TESSERA_F32;
  TestTensor q, k, cu_q, cu_k, page_table, seqused_k, q_offset;
  Paged paged;  // k, row-major, and page_table again, where in pages

  Index(const IndexCase& c, tessera_dtype type, double poison = std::nan("")) : shape(c), dtype(type) {
    Random random(static_cast<uint64_t>(c.keys + c.dim));
    const bool gaps = c.layout == cases::Layout::kStrided;
    const auto tensor = [&](const Shape& of, size_t broadcast_axis) {
      TestTensor t(dtype, of,
                   gaps                                    ? gappy_strides(of, 1)
                   : c.layout == cases::Layout::kBroadcast ? broadcast_strides(of, broadcast_axis)
                                                           : dense_strides(of));
      t.fill_normal(random);
      return t;
    };
    q = tensor({c.requests, c.queries, c.heads, c.dim}, 0);
    k = tensor({c.requests, c.keys, c.key_heads, c.dim}, 0);
    const auto requests = static_cast<size_t>(c.requests);
    if (c.packed_q) {
      const auto counts = c.rows_of.empty() ? std::vector<int64_t>(requests, c.queries) : c.rows_of;
      q = packed_rows(q, counts, gaps);
      cu_q = cumulative(counts, gaps);
    }
    const auto counts = c.keys_of.empty() ? std::vector<int64_t>(requests, c.keys) : c.keys_of;
    if (c.keys_form == Form::kPacked) {
      k = packed_rows(k, counts, gaps);
      cu_k = cumulative(counts, gaps);
    } else if (c.keys_form != Form::kBatch) {
      paged = in_pages(k, c.page_size, counts, poison, gaps);
      k = c.keys_form == Form::kPaged ? paged.k : packed_layout(paged.k, false, gaps);
      page_table = paged.page_table;
      seqused_k = paged.seqused_k;
    }
    if (c.offset == cases::Offset::kDefault) return;
    q_offset = TestTensor(TESSERA_I32, {c.requests}, {gaps ? 3 : 1});
    const int64_t offsets[] = {c.keys / 2 + 3, -c.queries / 2, c.keys + 5, -c.queries - 3};
    for (int64_t b = 0; b < c.requests; ++b) q_offset.set(b, static_cast<double>(offsets[b % 4]));
  }

  tessera_msa_index index() const {
    tessera_msa_index a = {};
    a.q = q;
    a.k = k;
    a.sequences.cu_seqlens_q = cu_q;
    a.sequences.cu_seqlens_k = cu_k;
    a.sequences.page_table = page_table;
    a.sequences.seqused_k = seqused_k;
    a.sequences.q_offset = q_offset;
    a.block_size = shape.block;
    a.reduce_heads = shape.reduce ? 1 : 0;
    return a;
  }

  // [B, Hi, Sq, entries] or [Hi, total_q, entries].
  TestTensor result(tessera_dtype type, int64_t entries) const {
    Shape of = {shape.outputs(), q.view().shape[shape.packed_q ? 0 : 1], entries};
    if (!shape.packed_q) of.insert(of.begin(), q.view().shape[0]);
    return {type, of, shape.layout == cases::Layout::kStrided ? gappy_strides(of, 2) : dense_strides(of)};
  }
  TestTensor scores_tensor() const { return result(TESSERA_F32, shape.blocks()); }
  TestTensor indices_tensor() const { return result(TESSERA_I32, shape.topk); }

  tessera_msa_block_scores_args scores_args(const tessera_tensor& to) const { return {index(), to}; }
  tessera_msa_select_args select_args(const tessera_tensor& to) const {
    return {index(), shape.topk, shape.local, shape.init, to};
  }

  TestTensor scores(const tessera_context& context = {}) const {
    const TestTensor to = scores_tensor();
    const auto args = scores_args(to);
    EXPECT_EQ(tessera_msa_block_scores(&args, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to, "scores");
    return to;
  }
  TestTensor select(const tessera_context& context = {}) const {
    const TestTensor to = indices_tensor();
    const auto args = select_args(to);
    EXPECT_EQ(tessera_msa_select(&args, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to, "indices");
    return to;
  }
  reference::BlockScores expected_scores() const { return reference::msa_block_scores(scores_args(scores_tensor())); }
  reference::Selection expected_lists() const { return reference::msa_select(select_args(indices_tensor())); }
};

// Both operators, every variant, against the oracle.
inline void expect_right(const Index& call) {
  const reference::BlockScores scores = call.expected_scores();
  const reference::Selection lists = call.expected_lists();
  for_each_variant(call.dtype, [&](const tessera_context& with) {
    EXPECT_TRUE(scores_within(call.scores(with), scores));
    EXPECT_TRUE(selection_within(call.select(with), lists));
  });
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_MSA_INDEX_H_
