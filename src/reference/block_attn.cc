// Block-sparse attention, row by row: softmax over those keys of the listed blocks that the row may see.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "reference/reference.h"
#include "reference/requests.h"
#include "reference/view.h"

namespace tessera {
namespace reference {
namespace {

using Rows = std::vector<std::vector<double>>;

// What the three forms of the call have in common. `list` and `row` tell where the index tensor and the results have what
// belongs to a request, head and query.
struct Call {
  View q, ids;
  const tessera_tensor& k;
  const tessera_tensor& v;
  const tessera_sequences& sequences;
  bool packed_q;
  int64_t block;
  int64_t block_q;
  bool causal;
  double scale;

  int64_t heads() const { return q.size(q.rank() - 2); }
  int64_t dim() const { return q.last_size(); }
  int64_t dim_v() const { return v.shape[std::min(v.ndim - 1, 3)]; }
};

double scale_of(const float* scale, const tessera_tensor& q) {
  return scale == nullptr ? 1 / std::sqrt(static_cast<double>(q.shape[q.ndim - 1])) : *scale;
}

int64_t or_default(int64_t block) { return block == 0 ? 128 : block; }

// Keys of the blocks on a list that exist, ascending. A list is a set; an id that names no block is skipped.
std::vector<int64_t> listed_keys(const Call& call, int64_t list, const Request& request, const Rows& k) {
  const int64_t width = call.ids.last_size();
  const int64_t blocks = request.keys / call.block + (request.keys % call.block != 0 ? 1 : 0);
  std::set<int64_t> chosen;
  for (int64_t w = 0; w < width; ++w) {
    const int64_t id = static_cast<int64_t>(call.ids.get(list * width + w));
    if (id >= 0 && id < blocks) chosen.insert(id);
  }
  std::vector<int64_t> listed;
  for (int64_t id : chosen) {
    for (int64_t key = id * call.block; key < std::min((id + 1) * call.block, request.keys); ++key) {
      if (!k[static_cast<size_t>(key)].empty()) listed.push_back(key);
    }
  }
  return listed;
}

// One row: attends the listed keys up to `last`.
void attend(const Call& call, int64_t row, const std::vector<int64_t>& listed, int64_t last, const Rows& k,
            const Rows& v, Attention* result) {
  const std::vector<double> q = call.q.row(row * call.dim(), call.dim());
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
  double* out = result->out.data() + row * call.dim_v();
  double* spread = result->spread.data() + row * call.dim_v();
  for (size_t j = 0; j < scores.size(); ++j) {
    const double p = std::exp(scores[j] - max) / sum;
    const std::vector<double>& value = v[static_cast<size_t>(listed[j])];
    for (size_t d = 0; d < value.size(); ++d) {
      out[d] += p * value[d];
      spread[d] += p * std::fabs(value[d]);
    }
  }
}

// Index of the list of query block i in ids, as a tensor of rows.
int64_t list_index(const Call& call, const Request& request, int64_t b, int64_t kv_head, int64_t kv_heads, int64_t i) {
  const int64_t lists = call.ids.size(call.ids.rank() - 2);
  if (call.packed_q) return kv_head * lists + request.first_row + i;
  return call.ids.rank() == 4 ? (b * kv_heads + kv_head) * lists + i : b * lists + i;
}

Attention attention(const Call& call, const tessera_tensor& q) {
  int64_t all_rows = 1;
  for (int axis = 0; axis < q.ndim - 1; ++axis) all_rows *= q.shape[axis];
  const size_t rows = static_cast<size_t>(all_rows);
  const size_t outputs = rows * static_cast<size_t>(call.dim_v());
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  Attention result;
  result.out.assign(outputs, 0);
  result.spread.assign(outputs, 0);
  result.lse.assign(rows, minus_infinity);
  result.l.assign(rows, 0);
  result.m.assign(rows, minus_infinity);
  result.reach.assign(rows, 0);

  const int64_t kv_heads = heads_of(call.k, call.sequences);
  const int64_t group = call.heads() / kv_heads;
  const std::vector<Request> requests = requests_of(q, call.packed_q, call.k, call.sequences);
  for (size_t index = 0; index < requests.size(); ++index) {
    const Request& request = requests[index];
    const int64_t b = static_cast<int64_t>(index);
    for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      const Rows k = key_rows(call.k, call.sequences, request, b, kv_head);
      const Rows v = value_rows(call.v, call.sequences, request, b, kv_head);
      for (int64_t t = 0; t < request.rows; ++t) {
        const int64_t list = list_index(call, request, b, kv_head, kv_heads, t / call.block_q);
        const std::vector<int64_t> listed = listed_keys(call, list, request, k);
        const int64_t last = call.causal ? request.offset + t : request.keys;
        for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          attend(call, (request.first_row + t) * call.heads() + h, listed, last, k, v, &result);
        }
      }
    }
  }
  return result;
}

// A [H, S, ...] tensor as [1, S, H, ...], which is the same memory.
tessera_tensor as_batch(const tessera_tensor& t) {
  tessera_tensor batch = t;
  batch.ndim = t.ndim + 1;
  const int from[] = {-1, 1, 0, 2};
  for (int axis = 0; axis < batch.ndim; ++axis) {
    batch.shape[axis] = from[axis] < 0 ? 1 : t.shape[from[axis]];
    batch.stride[axis] = from[axis] < 0 ? 0 : t.stride[from[axis]];
  }
  return batch;
}

// The same call, of one request whose query block has one list, or one per head.
tessera_block_sparse_gqa_prefill_args as_prefill(const tessera_block_sparse_attention_single_q_args& args) {
  tessera_block_sparse_gqa_prefill_args prefill = {};
  prefill.q = as_batch(args.q);
  prefill.k = as_batch(args.k);
  prefill.v = as_batch(args.v);
  const tessera_tensor& ids = args.kv_indices;
  prefill.kv_indices = ids;
  prefill.kv_indices.ndim = ids.ndim == 2 ? 4 : 3;
  const bool per_head = ids.ndim == 2;
  const int64_t shape[] = {1, per_head ? ids.shape[0] : 1, per_head ? 1 : ids.shape[0], per_head ? ids.shape[1] : 0};
  const int64_t stride[] = {0, per_head ? ids.stride[0] : 0, per_head ? 0 : ids.stride[0],
                            per_head ? ids.stride[1] : 0};
  std::copy(shape, shape + 4, prefill.kv_indices.shape);
  std::copy(stride, stride + 4, prefill.kv_indices.stride);
  prefill.block_size = args.block_size;
  prefill.block_q = std::max<int64_t>(args.q.shape[1], 1);
  prefill.mask = args.mask;
  prefill.softmax_scale = args.softmax_scale;
  prefill.q_offset = args.q_offset;
  prefill.out = as_batch(args.out);
  if (args.lse.ndim != 0) prefill.lse = as_batch(args.lse);
  return prefill;
}

void write(const Attention& result, const tessera_tensor& out, const tessera_tensor& lse) {
  View(out).set_values(result.out);
  if (lse.ndim != 0) View(lse).set_values(result.lse);
}

}  // namespace

Attention attention(const tessera_block_sparse_gqa_prefill_args& args) {
  tessera_sequences sequences = {};
  sequences.page_table = args.page_table;
  sequences.seqused_k = args.seqused_k;
  sequences.q_offset = args.q_offset;
  const int64_t block = or_default(args.block_size);
  return attention({View(args.q), View(args.kv_indices), args.k, args.v, sequences, false, block,
                    args.block_q == 0 ? block : args.block_q, args.mask == TESSERA_MASK_CAUSAL,
                    scale_of(args.softmax_scale, args.q)},
                   args.q);
}

Attention attention(const tessera_msa_sparse_attention_args& args) {
  return attention(
      {View(args.q), View(args.q2k_indices), args.k, args.v, args.sequences, true, or_default(args.block_size), 1,
       args.mask == TESSERA_MASK_CAUSAL, scale_of(args.softmax_scale, args.q)},
      args.q);
}

// Rows are [1, bq, H] here.
Attention attention(const tessera_block_sparse_attention_single_q_args& args) { return attention(as_prefill(args)); }

}  // namespace reference

Status reference_block_sparse_gqa_prefill(const tessera_block_sparse_gqa_prefill_args& args) {
  reference::Attention result = reference::attention(args);
  if (args.state_o.ndim == 0) {
    reference::write(result, args.out, args.lse);
    return {};
  }
  const size_t dim_v = static_cast<size_t>(args.v.shape[3]);
  for (size_t i = 0; i < result.out.size(); ++i) result.out[i] *= result.l[i / dim_v];
  reference::View(args.state_o).set_values(result.out);
  reference::View(args.state_l).set_values(result.l);
  reference::View(args.state_m).set_values(result.m);
  return {};
}

Status reference_msa_sparse_attention(const tessera_msa_sparse_attention_args& args) {
  reference::write(reference::attention(args), args.out, args.lse);
  return {};
}

Status reference_block_sparse_attention_single_q(const tessera_block_sparse_attention_single_q_args& args) {
  return reference_block_sparse_gqa_prefill(reference::as_prefill(args));
}

}  // namespace tessera
