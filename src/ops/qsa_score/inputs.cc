#include "ops/qsa_score/inputs.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "tile/best.h"

namespace tessera::qsa_score {
namespace {

void check_scale(const float* scale, int64_t dim, Checker* c, Problem* p) {
  p->scale = scale != nullptr ? *scale : 1.0f / std::sqrt(static_cast<float>(dim));
  c->require(p->scale > 0 && std::isfinite(p->scale),
             [&] { return invalid("scale is " + std::to_string(p->scale) + "; expected a positive number"); });
}

}  // namespace

void check_queries(const Names& names, const Queries& a, const tessera_tensor& k, const char* key_axes,
                   std::initializer_list<int> key_ranks, const float* scale, Checker* c, Problem* p) {
  const tessera_tensor& q = a.q;
  c->tensor(names.q, q, a.axes, {a.packed ? 3 : 4}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->tensor(names.k, k, key_axes, key_ranks, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->same_dtype(names.k, k, names.q, q);
  c->unit_feature(names.q, q);
  c->unit_feature(names.k, k);
  if (!c->ok()) return;
  p->rows = row_form(names.q, q, a.packed, c);
  p->heads = q.shape[q.ndim - 2];
  p->dim = q.shape[q.ndim - 1];
  c->require(p->heads > 0, [&] { return invalid(std::string(names.q) + " has no heads"); });
  c->require(p->dim > 0, [&] { return invalid(std::string(names.q) + " needs at least one feature"); });
  c->head_dim(names.q, p->dim);
  c->axis(names.k, k, k.ndim - 1, p->dim, (std::string("D of ") + names.q).c_str());
  check_scale(scale, p->dim, c, p);
  p->dtype = q.dtype;
  p->q = q.data;
  p->q_stride = row_strides(q, a.packed);
  p->q_head = q.stride[q.ndim - 2];
  if (!given(a.weights)) return;
  const tessera_tensor& w = a.weights;
  c->tensor("weights", w, a.weights_axes, {q.ndim - 1}, {TESSERA_F32});
  for (int i = 0; i + 1 < q.ndim; ++i) c->axis("weights", w, i, q.shape[i], names.q);
  if (!c->ok()) return;
  p->weights = static_cast<const float*>(w.data);
  p->weights_stride = row_strides(w, a.packed);
  p->weights_head = w.stride[w.ndim - 1];
}

void check_pages(const Names& names, const tessera_tensor& k, const tessera_tensor& table, Checker* c, Problem* p) {
  if (k.ndim == 4) c->axis(names.k, k, 2, 1, "one key head");
  c->tensor(names.table, table, "[B, max_pages]", {2}, {TESSERA_I32});
  if (!c->ok()) return;
  p->k = {k.data, 0, k.stride[0], k.stride[1], 0};
  p->pages = {
      static_cast<const int32_t*>(table.data), table.stride[0], table.stride[1], k.shape[0], k.shape[1], false, 1};
  p->rows.requests = table.shape[0];
  if (__builtin_mul_overflow(table.shape[1], k.shape[1], &p->keys)) p->keys = INT64_MAX;
}

// Ids of keys are int32, and so are positions: no row sees more.
void finish(Problem* p) {
  p->keys = std::min<int64_t>(p->keys, INT32_MAX);
  const int64_t list = p->selects ? best_bytes(best_capacity(p->topk, p->keys, kListRun)) : 1;
  p->tile_tokens = std::max<int64_t>(1, std::min(kTileRows / p->heads, kTileBytes / list));
}

void finish_scores(const tessera_tensor& t, bool packed, Problem* p) {
  p->scores = static_cast<float*>(t.data);
  p->scores_stride = row_strides(t, packed);
  p->columns = t.shape[t.ndim - 1];
  p->scores_column = t.stride[t.ndim - 1];
  finish(p);
}

}  // namespace tessera::qsa_score
