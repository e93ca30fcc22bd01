// Block-sparse attention, row by row: softmax over those keys of the listed blocks that the row may see.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "reference/reference.h"
#include "reference/view.h"

namespace tessera {
namespace reference {
namespace {

using Rows = std::vector<std::vector<double>>;

struct Call {
  explicit Call(const tessera_block_sparse_gqa_prefill_args& args)
      : q(args.q), k(args.k), v(args.v), ids(args.kv_indices), q_offset(args.q_offset) {
    requests = q.size(0);
    queries = q.size(1);
    heads = q.size(2);
    keys = k.size(1);
    kv_heads = k.size(2);
    dim = q.size(3);
    dim_v = v.size(3);
    block = args.block_size == 0 ? 128 : args.block_size;
    block_q = args.block_q == 0 ? block : args.block_q;
    blocks = keys / block + (keys % block != 0 ? 1 : 0);
    causal = args.mask == TESSERA_MASK_CAUSAL;
    scale = args.softmax_scale == nullptr ? 1 / std::sqrt(static_cast<double>(dim)) : *args.softmax_scale;
  }

  // The row of q, and of every [B, Sq, Hq] result, that belongs to query t and head h.
  int64_t row(int64_t b, int64_t t, int64_t h) const { return (b * queries + t) * heads + h; }

  // Keys of the blocks on query block i's list, ascending. A list is a set; an id that names no block is skipped.
  std::vector<int64_t> listed_keys(int64_t b, int64_t kv_head, int64_t i) const {
    const int64_t lists = ids.size(ids.rank() - 2);
    const int64_t width = ids.last_size();
    const int64_t list = ids.rank() == 4 ? (b * kv_heads + kv_head) * lists + i : b * lists + i;
    std::set<int64_t> chosen;
    for (int64_t w = 0; w < width; ++w) {
      const int64_t id = static_cast<int64_t>(ids.get(list * width + w));
      if (id >= 0 && id < blocks) chosen.insert(id);
    }
    std::vector<int64_t> listed;
    for (int64_t id : chosen) {
      for (int64_t key = id * block; key < std::min((id + 1) * block, keys); ++key) listed.push_back(key);
    }
    return listed;
  }

  // The largest key that query t may see; beyond the last one when there is no mask.
  int64_t last_visible(int64_t b, int64_t t) const {
    if (!causal) return keys;
    const int64_t offset = q_offset.given() ? static_cast<int64_t>(q_offset.get(b)) : keys - queries;
    return offset + t;
  }

  // Rows of one KV head of k or v, as doubles.
  Rows rows_of(const View& tensor, int64_t b, int64_t kv_head) const {
    Rows rows;
    for (int64_t key = 0; key < keys; ++key) {
      rows.push_back(tensor.row(((b * keys + key) * kv_heads + kv_head) * tensor.last_size(), tensor.last_size()));
    }
    return rows;
  }

  View q, k, v, ids, q_offset;
  int64_t requests, queries, heads, keys, kv_heads, dim, dim_v, block, block_q, blocks;
  bool causal;
  double scale;
};

// One row: attends the listed keys up to `last`.
void attend(const Call& call, int64_t row, const std::vector<int64_t>& listed, int64_t last, const Rows& k,
            const Rows& v, Attention* result) {
  const std::vector<double> q = call.q.row(row * call.dim, call.dim);
  const size_t r = static_cast<size_t>(row);
  std::vector<double> scores;
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t key : listed) {
    if (key > last) break;
    double dot = 0;
    double magnitude = 0;
    for (size_t d = 0; d < q.size(); ++d) {
      const double product = q[d] * k[static_cast<size_t>(key)][d];
      dot += product;
      magnitude += std::fabs(product);
    }
    scores.push_back(dot * call.scale);
    max = std::max(max, dot * call.scale);
    result->reach[r] = std::max(result->reach[r], magnitude * std::fabs(call.scale));
  }
  if (scores.empty()) return;

  double sum = 0;
  for (double score : scores) sum += std::exp(score - max);
  result->m[r] = max;
  result->l[r] = sum;
  result->lse[r] = max + std::log(sum);
  double* out = result->out.data() + row * call.dim_v;
  double* spread = result->spread.data() + row * call.dim_v;
  for (size_t j = 0; j < scores.size(); ++j) {
    const double p = std::exp(scores[j] - max) / sum;
    const std::vector<double>& value = v[static_cast<size_t>(listed[j])];
    for (size_t d = 0; d < value.size(); ++d) {
      out[d] += p * value[d];
      spread[d] += p * std::fabs(value[d]);
    }
  }
}

}  // namespace

Attention attention(const tessera_block_sparse_gqa_prefill_args& args) {
  const Call call(args);
  const size_t rows = static_cast<size_t>(call.requests * call.queries * call.heads);
  const size_t outputs = rows * static_cast<size_t>(call.dim_v);
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  Attention result;
  result.out.assign(outputs, 0);
  result.spread.assign(outputs, 0);
  result.lse.assign(rows, minus_infinity);
  result.l.assign(rows, 0);
  result.m.assign(rows, minus_infinity);
  result.reach.assign(rows, 0);

  const int64_t group = call.heads / call.kv_heads;
  for (int64_t b = 0; b < call.requests; ++b) {
    for (int64_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
      const Rows k = call.rows_of(call.k, b, kv_head);
      const Rows v = call.rows_of(call.v, b, kv_head);
      for (int64_t first = 0; first < call.queries; first += call.block_q) {
        const std::vector<int64_t> listed = call.listed_keys(b, kv_head, first / call.block_q);
        for (int64_t t = first; t < std::min(first + call.block_q, call.queries); ++t) {
          for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
            attend(call, call.row(b, t, h), listed, call.last_visible(b, t), k, v, &result);
          }
        }
      }
    }
  }
  return result;
}

}  // namespace reference

Status reference_block_sparse_gqa_prefill(const tessera_block_sparse_gqa_prefill_args& args) {
  reference::Attention result = reference::attention(args);
  if (args.state_o.ndim == 0) {
    reference::View(args.out).set_values(result.out);
    if (args.lse.ndim != 0) reference::View(args.lse).set_values(result.lse);
    return {};
  }
  const size_t dim_v = static_cast<size_t>(args.v.shape[3]);
  for (size_t i = 0; i < result.out.size(); ++i) result.out[i] *= result.l[i / dim_v];
  reference::View(args.state_o).set_values(result.out);
  reference::View(args.state_l).set_values(result.l);
  reference::View(args.state_m).set_values(result.m);
  return {};
}

}  // namespace tessera
