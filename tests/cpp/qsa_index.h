// Calls of QSA's indexer for tests: rows as a batch or packed, keys as a batch or in pages, with any of the tensors that
// say what a row sees.
#ifndef TESSERA_TESTS_QSA_INDEX_H_
#define TESSERA_TESTS_QSA_INDEX_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "attention.h"
#include "paged.h"
#include "qsa_rows.h"
#include "selection.h"

namespace tessera::test {

struct QsaCase {
  int64_t requests = 1;
  int64_t queries = 40;
  int64_t keys = 40;  // N: blocks
  int64_t heads = 4;
  int64_t dim = 16;
  int64_t block = 4;
  Rows rows = Rows::kBatch;
  std::vector<int64_t> rows_of = {};  // packed rows: of each request, at most `queries`
  int64_t page_size = 0;              // 0: not in pages
  std::vector<int64_t> keys_of = {};  // complete blocks of each request, at most `keys`; given: so is seq_lens_k
  Positions positions = Positions::kLast;
  bool weights = false;
  bool lens_q = false;
  bool head_axis = false;  // pages [P, ps, 1, D]
  cases::Layout layout = cases::Layout::kDense;
  float scale = cases::kDefaultScale;
  int64_t topk = 4;
  int64_t spare = 0;  // more (or fewer) columns of scores than there are keys

  bool packed() const { return rows != Rows::kBatch; }
  int64_t columns() const { return std::max<int64_t>(0, keys + spare); }
};

inline void PrintTo(const QsaCase& c, std::ostream* out) {
  *out << "B " << c.requests << ", Q " << c.queries << ", rows " << static_cast<int>(c.rows) << ", N " << c.keys
       << ", ps " << c.page_size << ", Hi " << c.heads << ", D " << c.dim << ", bs " << c.block << ", K " << c.topk
       << ", positions " << static_cast<int>(c.positions) << ", layout " << static_cast<int>(c.layout) << ", columns "
       << c.columns() << (c.weights ? ", weights" : "") << (c.lens_q ? ", seq_lens_q" : "")
       << (c.keys_of.empty() ? "" : ", seq_lens_k");
}

// The same features without the head axis of pages [P, 1, ps, D], or with it in its other place.
inline tessera_tensor index_pages(const tessera_tensor& pages, bool head_axis) {
  const tessera_tensor& t = pages;
  tessera_tensor k = {
      t.data, t.dtype, 3, {t.shape[0], t.shape[2], t.shape[3]}, {t.stride[0], t.stride[2], t.stride[3]}};
  if (!head_axis) return k;
  k.ndim = 4;
  k.shape[2] = 1;
  k.stride[2] = t.stride[1];
  k.shape[3] = t.shape[3];
  k.stride[3] = t.stride[3];
  return k;
}

struct QsaIndex : QsaRows {
  QsaCase shape;
  tessera_dtype dtype = TESSERA_F32;
  float scale = 0;
  TestTensor q, k, weights, positions, lens_q, lens_k, page_table;
  Paged paged;  // k and page_table again, where in pages

  QsaIndex(const QsaCase& c, tessera_dtype type, double poison = std::nan(""))
      : QsaRows(c.rows, c.requests, c.queries, c.rows_of, c.layout), shape(c), dtype(type), scale(c.scale) {
    Random random(static_cast<uint64_t>(c.keys + c.dim + c.heads));
    const auto total = static_cast<int64_t>(request_of.size());
    const auto normal = [&](tessera_dtype of, Shape dims, size_t broadcast_axis, int64_t last) {
      TestTensor t = laid_out(of, dims, c.layout, last, broadcast_axis);
      t.fill_normal(random);
      return t;
    };
    const bool packed = c.packed();
    q = normal(dtype, packed ? Shape{total, c.heads, c.dim} : Shape{c.requests, c.queries, c.heads, c.dim}, 0, 1);
    if (c.weights) {
      weights = normal(TESSERA_F32, packed ? Shape{total, c.heads} : Shape{c.requests, c.queries, c.heads}, 0, 2);
    }
    k = normal(dtype, {c.requests, c.keys, c.dim}, 0, 1);
    if (c.page_size != 0) put_in_pages(poison);
    if (!c.keys_of.empty() || c.page_size != 0) {
      lens_k = ints({c.requests}, [&](int64_t b) { return keys_of(b) * c.block + b % c.block; });
    }
    if (c.lens_q) lens_q = some_rows(c.requests, c.queries);
    if (c.positions != Positions::kInferred) {
      const Shape of = packed ? Shape{total} : Shape{c.requests, c.queries};
      positions = ints(of, [&](int64_t t) { return position_of(t, &random); });
    }
  }

  int64_t keys_of(int64_t b) const {
    return shape.keys_of.empty() ? shape.keys : shape.keys_of[static_cast<size_t>(b)];
  }
  tessera_tensor key_view() const { return shape.page_size == 0 ? k.view() : index_pages(paged.k, shape.head_axis); }
  // Row-major index of the first feature of a key, in k or in paged.k.
  int64_t key_at(int64_t b, int64_t g) const {
    return shape.page_size == 0 ? (b * shape.keys + g) * shape.dim : paged.at(b, 0, g);
  }
  TestTensor& key_memory() { return shape.page_size == 0 ? k : paged.k; }

  tessera_qsa_index index() const {
    tessera_qsa_index a = {};
    a.q = q;
    a.k = key_view();
    a.weights = weights;
    a.scale = scale == cases::kDefaultScale ? nullptr : &scale;
    a.block_size = shape.block;
    a.cu_seqlens_q = cu_q;
    a.token_to_req = to_request;
    a.query_positions = positions;
    a.seq_lens_q = lens_q;
    a.seq_lens_k = lens_k;
    a.page_table = page_table;
    return a;
  }

  // [B, Q, entries] or [total_q, entries].
  TestTensor result(tessera_dtype type, int64_t entries) const {
    const Shape of = shape.packed() ? Shape{rows(), entries} : Shape{shape.requests, shape.queries, entries};
    return {type, of, shape.layout == cases::Layout::kStrided ? gappy_strides(of, 2) : dense_strides(of)};
  }
  TestTensor scores_tensor() const { return result(TESSERA_F32, shape.columns()); }
  TestTensor indices_tensor() const { return result(TESSERA_I32, shape.topk); }
  TestTensor tokens_tensor() const { return result(TESSERA_I32, shape.topk * shape.block + shape.block - 1); }

  tessera_qsa_indexer_mqa_score_args scores_args(const tessera_tensor& to) const { return {index(), to}; }
  tessera_qsa_select_args select_args(const tessera_tensor& ids, const tessera_tensor& tokens = {}) const {
    return {index(), shape.topk, ids, tokens, {}, {}};
  }

  TestTensor scores(const tessera_context& context = {}) const {
    const TestTensor to = scores_tensor();
    const auto args = scores_args(to);
    EXPECT_EQ(tessera_qsa_indexer_mqa_score(&args, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to, "scores");
    return to;
  }
  TestTensor select(const tessera_context& context = {}) const {
    const TestTensor to = indices_tensor();
    const auto args = select_args(to);
    EXPECT_EQ(tessera_qsa_select(&args, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to, "indices");
    return to;
  }
  TestTensor select_tokens(const tessera_context& context = {}) const {
    const TestTensor to = tokens_tensor();
    const auto args = select_args({}, to);
    EXPECT_EQ(tessera_qsa_select(&args, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to, "token_indices");
    return to;
  }
  reference::BlockScores expected_scores() const {
    return reference::qsa_indexer_mqa_score(scores_args(scores_tensor()));
  }
  reference::Selection expected_lists() const { return reference::qsa_select(select_args(indices_tensor())); }

 private:
  void put_in_pages(double poison) {
    TestTensor heads(dtype, {shape.requests, shape.keys, 1, shape.dim});
    for (int64_t i = 0; i < heads.elements(); ++i) heads.set(i, k.get(i));
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < shape.requests; ++b) lengths.push_back(keys_of(b));
    paged = in_pages(heads, shape.page_size, lengths, poison, shape.layout == cases::Layout::kStrided);
    page_table = paged.page_table;
  }
  int64_t position_of(int64_t t, Random* random) const {
    if (shape.positions == Positions::kScattered) {
      const int64_t ends[] = {INT_MIN, INT_MAX, -1, 0};
      return random->chance(4) ? random->pick(ends) : random->below(shape.keys * shape.block + 9);
    }
    const int64_t b = request_of[static_cast<size_t>(t)];
    return b < 0 ? INT_MAX : keys_of(b) * shape.block - rows_of_request(b) + index_of[static_cast<size_t>(t)];
  }
};

// Scores, lists and tokens, by every variant, against the oracle.
inline void expect_right(const QsaIndex& call) {
  const reference::BlockScores scores = call.expected_scores();
  const reference::Selection lists = call.expected_lists();
  for_each_variant(call.dtype, [&](const tessera_context& with) {
    EXPECT_TRUE(scores_within(call.scores(with), scores));
    const TestTensor ids = call.select(with);
    EXPECT_TRUE(selection_within(ids, lists));
    EXPECT_EQ(ids_of(call.select_tokens(with)), reference::qsa_token_indices(call.select_args(ids), ids_of(ids)));
  });
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_QSA_INDEX_H_
