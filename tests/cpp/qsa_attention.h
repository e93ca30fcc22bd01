// Calls of QSA's attention for tests, in every form of rows and keys. Tokens of no request keep the sentinel, a NaN.
#ifndef TESSERA_TESTS_QSA_ATTENTION_H_
#define TESSERA_TESTS_QSA_ATTENTION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <numeric>
#include <ostream>
#include <set>
#include <vector>

#include "attention.h"
#include "paged.h"
#include "qsa_rows.h"

namespace tessera::test {

using TokenArgs = tessera_qsa_sparse_attention_args;

enum class TokenForm { kBatch, kPacked, kPaged, kPhysical };

enum class Lists {
  kMixed,      // any order, a quarter invalid, some twice
  kPacked,     // `count` tokens in any order, then -1
  kScattered,  // those, with invalid ids in between
  kBlocks,     // blocks of four and the tail, ascending, then -1
  kPrefix,     // all tokens up to the row's position, then -1; of every fifth row as kMixed
};

enum class Gate { kNone, kFeatures, kHeads };

struct TokenCase {
  int64_t requests = 1;
  int64_t queries = 5;
  int64_t keys = 150;  // of the request that has most
  int64_t kv_heads = 2;
  int64_t group = 3;
  int64_t dim = 24;
  int64_t dim_v = 16;
  int64_t width = 40;
  int64_t count = 30;  // of kPacked and kScattered, whose tokens all rows of a request see
  Lists lists = Lists::kMixed;
  Rows rows = Rows::kBatch;
  std::vector<int64_t> rows_of = {};  // packed rows: of each request, at most `queries`
  TokenForm form = TokenForm::kBatch;
  int64_t page_size = 16;
  std::vector<int64_t> keys_of = {};  // of each request, at most `keys`
  Positions positions = Positions::kInferred;
  bool lens_q = false;
  Gate gate = Gate::kNone;
  bool gate_f32 = false;
  int64_t splits = 0;
  cases::Layout layout = cases::Layout::kDense;
  float scale = cases::kDefaultScale;

  bool packed() const { return rows != Rows::kBatch; }
  int64_t heads() const { return kv_heads * group; }
};

inline void PrintTo(const TokenCase& c, std::ostream* os) {
  *os << "B " << c.requests << ", Q " << c.queries << ", rows " << static_cast<int>(c.rows) << ", Sk " << c.keys
      << ", keys " << static_cast<int>(c.form) << ", ps " << c.page_size << ", Hkv " << c.kv_heads << ", G " << c.group
      << ", D " << c.dim << ", Dv " << c.dim_v << ", W " << c.width << ", count " << c.count << ", lists "
      << static_cast<int>(c.lists) << ", positions " << static_cast<int>(c.positions) << ", gate "
      << static_cast<int>(c.gate) << (c.gate_f32 ? " f32" : "") << ", splits " << c.splits << ", layout "
      << static_cast<int>(c.layout) << ", scale " << c.scale << (c.lens_q ? ", seq_lens_q" : "")
      << (c.keys_of.empty() ? "" : ", keys_of");
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct TokenAttn : QsaRows {
  TokenCase shape;
  tessera_dtype dtype;
  float scale;
  TestTensor q, k, v, ids, positions, lens_q, lens_k, cu_k, page_table, gate;  // pages: [P, 1, ps, Hkv * D]
  Paged pages;                                                                 // k again
  bool with_lse = true;

  TokenAttn(const TokenCase& c, tessera_dtype type, uint64_t stream = 0)
      : QsaRows(c.rows, c.requests, c.queries, c.rows_of, c.layout), shape(c), dtype(type), scale(c.scale) {
    Random random(stream + static_cast<uint64_t>(c.keys + c.dim));
    q = of_rows(dtype, {c.heads(), c.dim}, 1);
    q.fill_normal(random);
    if (c.gate != Gate::kNone) {
      gate = of_rows(c.gate_f32 ? TESSERA_F32 : dtype,
                     c.gate == Gate::kHeads ? Shape{c.heads()} : Shape{c.heads(), c.dim_v}, 2);
      gate.fill_normal(random);
    }
    make_keys(&random);
    if (c.lens_q) lens_q = some_rows(c.requests, c.queries);
    if (c.positions != Positions::kInferred) {
      positions = ints(c.packed() ? Shape{rows()} : Shape{c.requests, c.queries},
                       [&](int64_t t) { return given_position(t, &random); });
    }
    ids = of_rows(TESSERA_I32, {c.width}, 2);
    for (int64_t t = 0; t < rows(); ++t) fill_list(t, &random);
  }

  int64_t keys_of(int64_t b) const {
    return shape.keys_of.empty() ? shape.keys : shape.keys_of[static_cast<size_t>(b)];
  }
  int64_t first_key(int64_t b) const {
    int64_t first = kGap;
    for (int64_t before = 0; before < b; ++before) first += keys_of(before);
    return first;
  }
  // On the axes of k and v before the heads; where head h of it begins, in elements of `in`.
  int64_t token(int64_t b, int64_t key) const {
    switch (shape.form) {
      case TokenForm::kBatch: return b * shape.keys + key;
      case TokenForm::kPacked: return first_key(b) + key;
      case TokenForm::kPaged: return pages.page(b, key / shape.page_size) * shape.page_size + key % shape.page_size;
      case TokenForm::kPhysical: break;
    }
    return key;
  }
  int64_t head_at(const TestTensor& in, int64_t token, int64_t head) const {
    return (token * shape.kv_heads + head) * (&in == &k ? shape.dim : shape.dim_v);
  }
  void set_token(int64_t token, int64_t head, double key, double value) {
    for (int64_t d = 0; d < shape.dim; ++d) k.set(head_at(k, token, head) + d, key);
    for (int64_t d = 0; d < shape.dim_v; ++d) v.set(head_at(v, token, head) + d, value);
  }
  int64_t position(int64_t t) const {
    const int64_t b = request_of[static_cast<size_t>(t)];
    if (b < 0) return -1;
    if (shape.form == TokenForm::kPhysical) return INT_MAX;
    if (shape.positions != Positions::kInferred) return static_cast<int64_t>(positions.get(t));
    return keys_of(b) - rows_of_request(b) + index_of[static_cast<size_t>(t)];
  }
  // Tokens that any row attends to. For calls without seq_lens_q and with valid pages.
  std::set<int64_t> used() const {
    std::set<int64_t> all;
    for (int64_t t = 0; t < rows(); ++t) {
      const int64_t b = request_of[static_cast<size_t>(t)];
      for (int64_t w = 0; b >= 0 && w < shape.width; ++w) {
        const auto id = static_cast<int64_t>(ids.get(t * shape.width + w));
        if (id >= 0 && id < keys_of(b) && id <= position(t)) all.insert(token(b, id));
      }
    }
    return all;
  }

  TokenArgs args() const {
    TokenArgs a = {};
    a.q = q;
    a.k = key_view(k);
    a.v = key_view(v);
    (shape.form == TokenForm::kPhysical ? a.selected_kv_indices : a.token_indices) = ids;
    a.cu_seqlens_q = cu_q;
    a.token_to_req = to_request;
    a.query_positions = positions;
    a.seq_lens_q = lens_q;
    a.cu_seqlens_k = cu_k;
    a.seq_lens_k = lens_k;
    a.page_table = page_table;
    a.softmax_scale = shape.scale == cases::kDefaultScale ? nullptr : &scale;
    a.num_splits = shape.splits;
    a.gate = gate;
    return a;
  }
  Output output() const {
    return {of_rows(dtype, {shape.heads(), shape.dim_v}, 1, 99), of_rows(TESSERA_F32, {shape.heads()}, 2, 99)};
  }
  TokenArgs args_into(const Output& to) const {
    TokenArgs a = args();
    a.out = to.out;
    if (with_lse) a.lse = to.lse;
    return a;
  }
  Output run(const tessera_context& context = {}) const {
    const Output to = output();
    const TokenArgs a = args_into(to);
    EXPECT_EQ(tessera_qsa_sparse_attention(&a, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to.out, "out");
    if (with_lse) expect_clean(to.lse, "lse");
    return to;
  }
  // After the gate, with room in the spread for the rounding before it.
  reference::Attention expected() const {
    reference::Attention want = reference::qsa_attention(args());
    if (shape.gate == Gate::kNone) return want;
    for (size_t i = 0; i < want.out.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const double weight = sigmoid(gate.get(shape.gate == Gate::kHeads ? at / shape.dim_v : at));
      want.spread[i] = weight * (want.spread[i] + half_ulp(want.out[i], dtype) / out_epsilon(dtype, 0));
      want.out[i] *= weight;
    }
    return want;
  }

 private:
  static constexpr int64_t kGap = 2;  // packed keys of nobody, before the first request and after the last

  // [B, Q, ...] or [total_q, ...]; broadcast over the requests, or packed rows, where the layout is. An output never is.
  TestTensor of_rows(tessera_dtype type, const Shape& rest, int64_t last, size_t broadcast_axis = 0) const {
    Shape of = shape.packed() ? Shape{rows()} : Shape{shape.requests, shape.queries};
    of.insert(of.end(), rest.begin(), rest.end());
    const bool broadcast = shape.layout == cases::Layout::kBroadcast && broadcast_axis < of.size();
    return laid_out(type, of, broadcast || gaps ? shape.layout : cases::Layout::kDense, last, broadcast_axis);
  }
  tessera_tensor key_view(const TestTensor& t) const {
    if (shape.form != TokenForm::kPaged) return t;
    const tessera_tensor& p = t;
    const int64_t dim = p.shape[3] / shape.kv_heads;
    return {p.data,
            p.dtype,
            4,
            {p.shape[0], p.shape[2], shape.kv_heads, dim},
            {p.stride[0], p.stride[2], dim, p.stride[3]}};
  }
  void make_keys(Random* random) {
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < shape.requests; ++b) lengths.push_back(keys_of(b));
    const int64_t total = std::accumulate(lengths.begin(), lengths.end(), 2 * kGap);
    const bool paged = shape.form == TokenForm::kPaged, by_token = shape.form == TokenForm::kPacked;
    const auto make = [&](int64_t dim) {
      const Shape of = paged                             ? Shape{shape.requests, shape.keys, 1, shape.kv_heads * dim}
                       : shape.form == TokenForm::kBatch ? Shape{shape.requests, shape.keys, shape.kv_heads, dim}
                                                         : Shape{by_token ? total : shape.keys, shape.kv_heads, dim};
      TestTensor t = laid_out(dtype, of, paged ? cases::Layout::kDense : shape.layout, 1, of.size() - 2);
      const int64_t row = shape.kv_heads * dim;
      for (int64_t b = 0; b < shape.requests; ++b) {
        const int64_t first = by_token ? first_key(b) : b * shape.keys;
        for (int64_t i = first * row; i < (first + keys_of(b)) * row; ++i) t.set(i, random->normal());
      }
      return t;
    };
    k = make(shape.dim);
    v = make(shape.dim_v);
    if (paged) {
      pages = in_pages(k, shape.page_size, lengths, std::nan(""), gaps);
      k = pages.k;
      v = in_pages(v, shape.page_size, lengths, std::nan(""), gaps).k;
      page_table = pages.page_table;
    }
    if (by_token) {
      cu_k = ints({shape.requests + 1}, [&](int64_t b) { return first_key(b); });
    } else if (paged || !shape.keys_of.empty()) {
      lens_k = ints({shape.requests}, [&](int64_t b) { return keys_of(b); });
    }
  }
  int64_t given_position(int64_t t, Random* random) const {
    const int64_t b = request_of[static_cast<size_t>(t)];
    if (b < 0) return INT_MAX;
    if (shape.positions == Positions::kLast) return keys_of(b) - rows_of_request(b) + index_of[static_cast<size_t>(t)];
    const int64_t ends[] = {INT_MIN, INT_MAX, -1, 0};
    return random->chance(4) ? random->pick(ends) : random->below(shape.keys + 9);
  }
  void fill_list(int64_t t, Random* random) {
    const int64_t b = std::max<int64_t>(request_of[static_cast<size_t>(t)], 0), keys = keys_of(b);
    const int64_t invalid[] = {-1, INT_MIN, INT_MAX, keys, -keys - 1, keys + 7};
    std::vector<int64_t> list;
    if (shape.lists == Lists::kPrefix && t % 5 != 4) {
      list.resize(static_cast<size_t>(std::clamp<int64_t>(position(t) + 1, 0, keys)));
      std::iota(list.begin(), list.end(), 0);
    } else if (shape.lists == Lists::kMixed || shape.lists == Lists::kPrefix) {
      for (int64_t w = 0; w < shape.width; ++w) {
        list.push_back(keys == 0 || random->chance(4) ? random->pick(invalid) : random->below(keys));
      }
    } else if (shape.lists == Lists::kBlocks) {
      const int64_t end = std::clamp<int64_t>(position(t) + 1, 0, keys);
      for (int64_t id = 0; id < end / 4 * 4 && static_cast<int64_t>(list.size()) + 7 <= shape.width; ++id) {
        if (id % 4 == 0 && random->chance(3)) id += 4;
        if (id < end / 4 * 4) list.push_back(id);
      }
      for (int64_t id = end / 4 * 4; id < end; ++id) list.push_back(id);
    } else {
      std::vector<int64_t> seen(static_cast<size_t>(std::max<int64_t>(0, keys - rows_of_request(b) + 1)));
      std::iota(seen.begin(), seen.end(), 0);
      for (size_t i = seen.size(); i > 1; --i) std::swap(seen[i - 1], seen[static_cast<size_t>(random->below(i))]);
      int64_t left = std::min({shape.count, shape.width, static_cast<int64_t>(seen.size())});
      for (int64_t w = 0; w < shape.width; ++w) {
        const bool here = shape.lists == Lists::kPacked || random->below(shape.width - w) < left;
        const int64_t other = shape.lists == Lists::kPacked ? -1 : random->pick(invalid);
        list.push_back(left > 0 && here ? seen[static_cast<size_t>(--left)] : other);
      }
    }
    list.resize(static_cast<size_t>(shape.width), -1);
    for (int64_t w = 0; w < shape.width; ++w) {
      ids.set(t * shape.width + w, static_cast<double>(list[static_cast<size_t>(w)]));
    }
  }
};

inline void expect_near_oracle(const TokenAttn& call, const Output& got, const reference::Attention& want) {
  EXPECT_TRUE(out_within(got.out, call.dtype, want.out, want.spread, want.reach));
  if (!call.with_lse) return;
  EXPECT_TRUE(log_within("lse", got.lse, call.dtype, want.lse, want.reach));
}

// By every variant, against the oracle.
inline void expect_right(const TokenAttn& call) {
  const reference::Attention want = call.expected();
  for_each_variant(call.dtype, [&](const tessera_context& with) { expect_near_oracle(call, call.run(with), want); });
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_QSA_ATTENTION_H_
