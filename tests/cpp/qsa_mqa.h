// Calls of the two scores whose rows are not placed by positions: intervals over one set of keys, and counts over pages.
#ifndef TESSERA_TESTS_QSA_MQA_H_
#define TESSERA_TESTS_QSA_MQA_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <ostream>
#include <vector>

#include "qsa_index.h"

namespace tessera::test {

struct PrefillCase {
  int64_t rows = 40;
  int64_t keys = 60;
  int64_t heads = 4;
  int64_t dim = 16;
  bool weights = false;
  bool key_axis = false;  // k [keys, 1, D]
  cases::Layout layout = cases::Layout::kDense;
};

inline void PrintTo(const PrefillCase& c, std::ostream* out) {
  *out << "rows " << c.rows << ", keys " << c.keys << ", Hi " << c.heads << ", D " << c.dim << ", layout "
       << static_cast<int>(c.layout) << (c.weights ? ", weights" : "") << (c.key_axis ? ", key axis" : "");
}

// Intervals of every kind: all keys, none, some, beyond either end, upside down.
struct Prefill {
  PrefillCase shape;
  tessera_dtype dtype;
  TestTensor q, k, weights, starts, ends;

  Prefill(const PrefillCase& c, tessera_dtype type) : shape(c), dtype(type) {
    Random random(static_cast<uint64_t>(c.keys + c.dim));
    const auto normal = [&](tessera_dtype of, const Shape& dims, size_t axis, int64_t last) {
      TestTensor t = laid_out(of, dims, c.layout, last, axis);
      t.fill_normal(random);
      return t;
    };
    q = normal(dtype, {c.rows, c.heads, c.dim}, 0, 1);
    k = c.key_axis ? normal(dtype, {c.keys, 1, c.dim}, 0, 1) : normal(dtype, {c.keys, c.dim}, 0, 1);
    if (c.weights) weights = normal(TESSERA_F32, {c.rows, c.heads}, 0, 2);
    const int64_t stride = c.layout == cases::Layout::kStrided ? 3 : 1;
    starts = TestTensor(TESSERA_I32, {c.rows}, {stride});
    ends = TestTensor(TESSERA_I32, {c.rows}, {stride});
    const int64_t odd[] = {INT_MIN, -1, 0, c.keys, c.keys + 1, INT_MAX};
    for (int64_t t = 0; t < c.rows; ++t) {
      const int64_t a = random.below(c.keys + 1), b = random.below(c.keys + 1);
      const bool whole = random.chance(4);
      starts.set(t, static_cast<double>(whole ? 0 : random.chance(5) ? random.pick(odd) : std::min(a, b)));
      ends.set(t, static_cast<double>(whole ? c.keys : random.chance(5) ? random.pick(odd) : std::max(a, b)));
    }
  }

  tessera_qsa_mqa_prefill_args args(const tessera_tensor& to) const {
    return {q, k, starts, ends, weights, nullptr, to};
  }
  TestTensor scores_tensor() const {
    const Shape of = {shape.rows, shape.keys};
    return {TESSERA_F32, of, shape.layout == cases::Layout::kStrided ? gappy_strides(of, 2) : dense_strides(of)};
  }
  TestTensor scores(const tessera_context& context = {}) const {
    const TestTensor to = scores_tensor();
    const auto a = args(to);
    EXPECT_EQ(tessera_qsa_mqa_prefill(&a, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to, "scores");
    return to;
  }
  reference::BlockScores expected() const { return reference::qsa_mqa_prefill(args(scores_tensor())); }
};

struct DecodeCase {
  int64_t requests = 3;
  int64_t rows = 1;       // n of each request
  int64_t keys = 60;      // at most, of a request
  int64_t columns = 60;   // max_model_len
  int64_t page_size = 8;  // any
  int64_t heads = 4;
  int64_t dim = 16;
  bool weights = false;
  bool row_axis = false;   // q [B, 1, Hi, D] although n is 1
  bool row_lens = false;   // context_lens [B, n]
  bool head_axis = false;  // pages [P, ps, 1, D]
  cases::Layout layout = cases::Layout::kDense;
};

inline void PrintTo(const DecodeCase& c, std::ostream* out) {
  *out << "B " << c.requests << ", n " << c.rows << (c.row_axis ? " (axis)" : "") << ", keys " << c.keys << ", columns "
       << c.columns << ", ps " << c.page_size << ", Hi " << c.heads << ", D " << c.dim << ", layout "
       << static_cast<int>(c.layout) << (c.weights ? ", weights" : "") << (c.row_lens ? ", a length for each row" : "");
}

struct Decode {
  DecodeCase shape;
  tessera_dtype dtype;
  TestTensor q, weights, lens;
  Paged paged;

  // Request b has keys - 7 b keys; slots without a key hold `poison`.
  Decode(const DecodeCase& c, tessera_dtype type, double poison = std::nan("")) : shape(c), dtype(type) {
    Random random(static_cast<uint64_t>(c.keys + c.dim));
    const auto normal = [&](tessera_dtype of, const Shape& dims, int64_t last) {
      TestTensor t = laid_out(of, dims, c.layout, last);
      t.fill_normal(random);
      return t;
    };
    const bool axis = c.rows != 1 || c.row_axis;
    q = normal(dtype, axis ? Shape{c.requests, c.rows, c.heads, c.dim} : Shape{c.requests, c.heads, c.dim}, 1);
    if (c.weights) {
      weights = normal(TESSERA_F32, axis ? Shape{c.requests, c.rows, c.heads} : Shape{c.requests, c.heads}, 2);
    }
    TestTensor keys(dtype, {c.requests, c.keys, 1, c.dim});
    keys.fill_normal(random);
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < c.requests; ++b) lengths.push_back(std::max<int64_t>(0, c.keys - 7 * b));
    const bool gaps = c.layout == cases::Layout::kStrided;
    paged = in_pages(keys, c.page_size, lengths, poison, gaps);
    const Shape of = c.row_lens ? Shape{c.requests, c.rows} : Shape{c.requests};
    lens = TestTensor(TESSERA_I32, of, gaps ? gappy_strides(of, 3) : dense_strides(of));
    for (int64_t i = 0; i < lens.elements(); ++i) {
      const int64_t b = c.row_lens ? i / c.rows : i;
      lens.set(i, static_cast<double>(lengths[static_cast<size_t>(b)] - (c.row_lens ? i % c.rows : 0)));
    }
  }

  tessera_qsa_mqa_decode_args args(const tessera_tensor& to) const {
    return {q, index_pages(paged.k, shape.head_axis), paged.page_table, lens, weights, nullptr, to};
  }
  TestTensor scores_tensor() const {
    const Shape of = {shape.requests * shape.rows, shape.columns};
    return {TESSERA_F32, of, shape.layout == cases::Layout::kStrided ? gappy_strides(of, 2) : dense_strides(of)};
  }
  TestTensor scores(const tessera_context& context = {}) const {
    const TestTensor to = scores_tensor();
    const auto a = args(to);
    EXPECT_EQ(tessera_qsa_mqa_decode(&a, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to, "scores");
    return to;
  }
  reference::BlockScores expected() const { return reference::qsa_mqa_decode(args(scores_tensor())); }
};

}  // namespace tessera::test

#endif  // TESSERA_TESTS_QSA_MQA_H_
