#include "ops/block_attn/check.h"

#include <string>

#include "ops/block_attn/inputs.h"
#include "ops/layout.h"

namespace tessera::block_attn {
namespace {

void check_states(const tessera_block_sparse_gqa_prefill_args& a, const Call& call, Checker* c) {
  c->require(!given(a.out) && !given(a.lse), [&] { return invalid("out and lse are not outputs of the state form"); });
  check_output("state_o", a.state_o, true, TESSERA_F32, call, c);
  check_output("state_l", a.state_l, false, TESSERA_F32, call, c);
  check_output("state_m", a.state_m, false, TESSERA_F32, call, c);
  c->disjoint("state_o", a.state_o, "state_l", a.state_l);
  c->disjoint("state_o", a.state_o, "state_m", a.state_m);
  c->disjoint("state_l", a.state_l, "state_m", a.state_m);
}

int64_t or_default(int64_t size, int64_t otherwise) { return size == 0 ? otherwise : size; }

// [H, S, D] as [1, S, H, D]; [H, S] as [1, S, H].
tessera_tensor heads_behind_tokens(const tessera_tensor& t) {
  tessera_tensor view = t;
  if (t.ndim < 2 || t.ndim > 3) return view;
  view.ndim = t.ndim + 1;
  view.shape[0] = 1;
  view.stride[0] = 0;
  view.shape[1] = t.shape[1];
  view.stride[1] = t.stride[1];
  view.shape[2] = t.shape[0];
  view.stride[2] = t.stride[0];
  view.shape[3] = t.shape[2];
  view.stride[3] = t.stride[2];
  return view;
}

Status check_prefill(const tessera_block_sparse_gqa_prefill_args& a, bool wants_state, Problem* p) {
  const int64_t block = or_default(a.block_size, kDefaultBlock);
  const int64_t block_q = or_default(a.block_q, block);
  tessera_sequences sequences = {};
  sequences.page_table = a.page_table;
  sequences.seqused_k = a.seqused_k;
  sequences.q_offset = a.q_offset;
  const Call call = {{"q", a.q, "[B, Sq, Hq, D]"},
                     a.k,
                     a.v,
                     {"kv_indices", a.kv_indices, "[B, nQ, W] or [B, Hkv, nQ, W]"},
                     false,
                     block,
                     a.mask,
                     a.softmax_scale,
                     sequences};
  const KeyForm form = key_form(sequences, a.k.ndim);
  Checker c;
  const Sequences all = check_inputs(call, form, &c);
  c.require(block_q > 0, [&] { return invalid("block_q is " + std::to_string(block_q) + "; expected at least 1"); });
  if (c.ok()) {
    const tessera_tensor& ids = a.kv_indices;
    c.axis("kv_indices", ids, 0, a.q.shape[0], "B of q");
    if (ids.ndim == 4) c.axis("kv_indices", ids, 1, a.k.shape[key_heads_axis(form)], "Hkv of k");
    c.axis("kv_indices", ids, ids.ndim - 2, ceil_div(a.q.shape[1], block_q), "nQ = ceil(Sq / block_q)");
  }
  if (c.ok() && wants_state) check_states(a, call, &c);
  if (c.ok() && !wants_state) {
    c.require(!given(a.state_o) && !given(a.state_l) && !given(a.state_m),
              [&] { return invalid("state_o, state_l and state_m are outputs of the state form only"); });
    check_out(a.out, a.lse, call, &c);
  }
  if (!c.ok()) return c.take();

  fill_inputs(call, form, all, p);
  p->block_q = block_q;
  fill_out(a.out, a.lse, false, p);
  p->o = static_cast<float*>(a.state_o.data);
  p->o_stride = strides(a.state_o, false);
  p->l = static_cast<float*>(a.state_l.data);
  p->m = static_cast<float*>(a.state_m.data);
  p->l_stride = strides(a.state_l, false);
  p->m_stride = strides(a.state_m, false);
  return {};
}

}  // namespace

Status check(const tessera_block_sparse_gqa_prefill_args& a, Problem* p) { return check_prefill(a, false, p); }
Status check_state(const tessera_block_sparse_gqa_prefill_args& a, Problem* p) { return check_prefill(a, true, p); }
Status check_either(const tessera_block_sparse_gqa_prefill_args& a, Problem* p) {
  return check_prefill(a, given(a.state_o), p);
}

Status check(const tessera_msa_sparse_attention_args& a, Problem* p) {
  const Call call = {{"q", a.q, "[total_q, Hq, D]"},
                     a.k,
                     a.v,
                     {"q2k_indices", a.q2k_indices, "[Hkv, total_q, W]"},
                     true,
                     or_default(a.block_size, kDefaultBlock),
                     a.mask,
                     a.softmax_scale,
                     a.sequences};
  // Without any of the tensors that tell, a k of three axes is a packed one whose cu_seqlens_k is missing.
  KeyForm form = key_form(a.sequences, a.k.ndim);
  if (form == KeyForm::kBatch) form = KeyForm::kPacked;
  Checker c;
  const Sequences all = check_inputs(call, form, &c);
  if (c.ok()) {
    c.axis("q2k_indices", a.q2k_indices, 0, a.k.shape[key_heads_axis(form)], "Hkv of k");
    c.axis("q2k_indices", a.q2k_indices, 1, a.q.shape[0], "total_q of q");
    check_out(a.out, a.lse, call, &c);
  }
  if (!c.ok()) return c.take();
  fill_inputs(call, form, all, p);
  p->block_q = 1;
  fill_out(a.out, a.lse, true, p);
  return {};
}

Status check(const tessera_block_sparse_attention_single_q_args& a, Problem* p) {
  tessera_sequences sequences = {};
  sequences.q_offset = a.q_offset;
  const tessera_tensor q = heads_behind_tokens(a.q);
  const tessera_tensor k = heads_behind_tokens(a.k);
  const tessera_tensor v = heads_behind_tokens(a.v);
  const tessera_tensor out = heads_behind_tokens(a.out);
  const tessera_tensor lse = heads_behind_tokens(a.lse);
  // The list of the one query block, for all heads or per head.
  tessera_tensor ids = a.kv_indices;
  const bool per_head = ids.ndim == 2;
  if (ids.ndim == 1 || ids.ndim == 2) {
    ids.ndim = per_head ? 4 : 3;
    ids.shape[ids.ndim - 1] = a.kv_indices.shape[a.kv_indices.ndim - 1];
    ids.stride[ids.ndim - 1] = a.kv_indices.stride[a.kv_indices.ndim - 1];
    ids.shape[0] = ids.shape[ids.ndim - 2] = 1;
    ids.stride[0] = ids.stride[ids.ndim - 2] = 0;
    if (per_head) {
      ids.shape[1] = a.kv_indices.shape[0];
      ids.stride[1] = a.kv_indices.stride[0];
    }
  }
  // Messages write shapes as they came.
  Checker c;
  c.tensor("q", a.q, "[H, bq, D]", {3}, kFloats);
  c.tensor("k", a.k, "[H, Sk, D]", {3}, kFloats);
  c.tensor("v", a.v, "[H, Sk, Dv]", {3}, kFloats);
  c.tensor("kv_indices", a.kv_indices, "[W] or [H, W]", {1, 2}, {TESSERA_I32});
  c.axis("k", a.k, 0, a.q.shape[0], "H of q");
  c.axis("k", a.k, 2, a.q.shape[2], "D of q");
  for (int i : {0, 1}) c.axis("v", a.v, i, a.k.shape[i], "the same axis of k");
  if (per_head) c.axis("kv_indices", a.kv_indices, 0, a.q.shape[0], "H of q");
  c.tensor("out", a.out, "[H, bq, Dv]", {3}, {a.q.dtype});
  for (int i : {0, 1}) c.axis("out", a.out, i, a.q.shape[i], "the same axis of q");
  c.axis("out", a.out, 2, a.v.shape[2], "Dv of v");
  if (given(a.lse)) {
    c.tensor("lse", a.lse, "[H, bq]", {2}, {TESSERA_F32});
    for (int i : {0, 1}) c.axis("lse", a.lse, i, a.q.shape[i], "the same axis of q");
  }
  if (!c.ok()) return c.take();
  const Call call = {{"q", q, "[H, bq, D]"},
                     k,
                     v,
                     {"kv_indices", ids, "[W] or [H, W]"},
                     false,
                     or_default(a.block_size, kDefaultBlock),
                     a.mask,
                     a.softmax_scale,
                     sequences};
  const Sequences all = check_inputs(call, KeyForm::kBatch, &c);
  if (c.ok()) check_out(out, lse, call, &c);
  if (!c.ok()) return c.take();
  fill_inputs(call, KeyForm::kBatch, all, p);
  p->block_q = q.shape[1] > 0 ? q.shape[1] : 1;
  fill_out(out, lse, false, p);
  return {};
}

}  // namespace tessera::block_attn
