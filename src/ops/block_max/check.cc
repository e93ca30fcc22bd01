#include "ops/block_max/check.h"

#include <string>

#include "core/check.h"
#include "core/packed_layout.h"
#include "ops/select_topk/check.h"

namespace tessera::block_max {
namespace {

using Index = tessera_msa_index;

bool is_packed(const Index& a) { return a.q.ndim == 3; }

void check_heads(const Index& a, KeyForm form, Checker* c) {
  const int64_t heads = a.q.shape[a.q.ndim - 2];
  const int64_t key_heads = a.k.shape[key_heads_axis(form)];
  const int64_t dim = a.q.shape[a.q.ndim - 1];
  c->require(heads > 0, [] { return invalid("q has no heads"); });
  c->require(key_heads == 1 || key_heads == heads, [&] {
    return invalid("k has " + std::to_string(key_heads) + " heads and q has " + std::to_string(heads) +
                   "; expected 1, shared by all, or one for each");
  });
  c->require(dim > 0, [] { return invalid("q needs at least one feature"); });
  c->head_dim("q", dim);
}

// Fills what does not depend on the result.
void check_index(const Index& a, Checker* c, Problem* p) {
  const KeyForm form = key_form(a.sequences, a.k.ndim);
  c->tensor("q", a.q, "[B, Sq, Hi, D] or [total_q, Hi, D]", {3, 4}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->tensor("k", a.k, key_axes(form), {key_rank(form)}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->same_dtype("k", a.k, "q", a.q);
  c->unit_feature("q", a.q);
  if (!c->ok()) return;
  const int64_t dim = a.q.shape[a.q.ndim - 1];
  if (form == KeyForm::kPagedPacked) {
    check_packed_keys("k", a.k, dim, "ceil(D/e), D of q", c);
  } else {
    c->unit_feature("k", a.k);
    c->axis("k", a.k, a.k.ndim - 1, dim, "D of q");
  }
  check_heads(a, form, c);
  if (!c->ok()) return;
  const bool packed = is_packed(a);
  p->sequences = check_sequences(a.q, packed, a.k, a.sequences, c);
  p->block = a.block_size == 0 ? kDefaultBlock : a.block_size;
  c->require(p->block > 0,
             [&] { return invalid("block_size is " + std::to_string(p->block) + "; expected at least 1"); });
  p->heads = a.q.shape[a.q.ndim - 2];
  p->key_heads = a.k.shape[key_heads_axis(form)];
  p->dim = dim;
  p->reduce = a.reduce_heads != 0;
  p->dtype = a.q.dtype;
  p->q = a.q.data;
  p->q_request = packed ? 0 : a.q.stride[0];
  p->q_token = a.q.stride[a.q.ndim - 3];
  p->q_head = a.q.stride[a.q.ndim - 2];
  p->k = key_view(form, a.k);
  p->pages = paging(form, a.k, a.sequences);
}

// A result [B, Hi, Sq, entries] or [Hi, total_q, entries] that shares no memory with an input.
void check_result(const char* name, const tessera_tensor& t, const char* batch_axes, const char* packed_axes,
                  tessera_dtype dtype, const Index& a, const Problem& p, Checker* c) {
  const bool packed = is_packed(a);
  c->tensor(name, t, packed ? packed_axes : batch_axes, {packed ? 3 : 4}, {dtype});
  if (!packed) c->axis(name, t, 0, a.q.shape[0], "B of q");
  c->axis(name, t, t.ndim - 3, p.reduce ? 1 : p.heads, p.reduce ? "one for all heads" : "Hi of q");
  c->axis(name, t, t.ndim - 2, a.q.shape[packed ? 0 : 1], packed ? "total_q of q" : "Sq of q");
  c->output(name, t);
  c->disjoint(name, t, "q", a.q);
  c->disjoint(name, t, "k", a.k);
  c->disjoint(name, t, "cu_seqlens_q", a.sequences.cu_seqlens_q);
  c->disjoint(name, t, "cu_seqlens_k", a.sequences.cu_seqlens_k);
  c->disjoint(name, t, "page_table", a.sequences.page_table);
  c->disjoint(name, t, "seqused_k", a.sequences.seqused_k);
  c->disjoint(name, t, "q_offset", a.sequences.q_offset);
}

Strides strides(const tessera_tensor& t) {
  const int64_t* last = t.stride + t.ndim - 1;
  return {t.ndim == 3 ? 0 : t.stride[0], last[-2], last[-1], last[0]};
}

}  // namespace

Status check(const tessera_msa_block_scores_args& a, Problem* p) {
  Checker c;
  *p = {};
  check_index(a.index, &c, p);
  if (c.ok()) check_result("scores", a.scores, "[B, Hi, Sq, N]", "[Hi, total_q, N]", TESSERA_F32, a.index, *p, &c);
  if (!c.ok()) return c.take();
  p->scores = static_cast<float*>(a.scores.data);
  p->scores_stride = strides(a.scores);
  p->blocks = a.scores.shape[a.scores.ndim - 1];
  return {};
}

Status check(const tessera_msa_select_args& a, Problem* p) {
  Checker c;
  *p = {};
  check_index(a.index, &c, p);
  p->rule = {a.topk, p->block, a.local_blocks, a.init_blocks};
  select_topk::check_rule(p->rule, &c);
  if (c.ok()) {
    check_result("indices", a.indices, "[B, Hi, Sq, topk]", "[Hi, total_q, topk]", TESSERA_I32, a.index, *p, &c);
    c.axis("indices", a.indices, a.indices.ndim - 1, a.topk, "topk");
  }
  if (!c.ok()) return c.take();
  p->selects = true;
  p->ids = static_cast<int32_t*>(a.indices.data);
  p->ids_stride = strides(a.indices);
  return {};
}

}  // namespace tessera::block_max
