#include "ops/block_attn/check.h"

#include <cmath>
#include <initializer_list>
#include <string>

#include "core/check.h"
#include "ops/layout.h"

namespace tessera::block_attn {
namespace {

constexpr auto kFloats = {TESSERA_BF16, TESSERA_F16, TESSERA_F32};

// A tensor, what messages call it and how they write its axes.
struct Named {
  const char* name;
  const tessera_tensor& tensor;
  const char* axes;
};

// What the forms have in common: the axes of q are [rows..., heads, D].
struct Call {
  Named q;
  const tessera_tensor& k;
  const tessera_tensor& v;
  Named ids;
  bool packed_q;
  int64_t block;
  tessera_mask mask;
  const float* softmax_scale;
  const tessera_sequences& sequences;
};

int heads_axis(const tessera_tensor& q) { return q.ndim - 2; }
int64_t value_dim(const tessera_tensor& v, KeyForm form) {
  return v.shape[form == KeyForm::kPagedPacked ? 3 : v.ndim - 1];
}

Strides strides(const tessera_tensor& t, bool packed) {
  return packed ? Strides{0, t.stride[0], t.stride[1]} : Strides{t.stride[0], t.stride[1], t.stride[2]};
}

void check_heads(const tessera_tensor& q, const tessera_tensor& k, const tessera_tensor& v, KeyForm form, Checker* c) {
  const int64_t heads = q.shape[heads_axis(q)];
  const int64_t kv_heads = k.shape[key_heads_axis(form)];
  const int64_t dim = q.shape[q.ndim - 1];
  const int64_t dim_v = value_dim(v, form);
  c->require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, [&] {
    return invalid("q has " + std::to_string(heads) + " heads and k has " + std::to_string(kv_heads) +
                   "; accepted: a positive multiple");
  });
  c->require(dim > 0 && dim_v > 0, [&] { return invalid("q and v need at least one feature"); });
  c->require(dim <= kMaxDim && dim_v <= kMaxDim, [&] {
    return not_implemented("head dims above " + std::to_string(kMaxDim) + " are not supported; q has " +
                           std::to_string(dim) + ", v has " + std::to_string(dim_v));
  });
}

void check_options(const Call& call, Checker* c) {
  c->require(call.block > 0,
             [&] { return invalid("block_size is " + std::to_string(call.block) + "; accepted: at least 1"); });
  c->require(call.mask == TESSERA_MASK_CAUSAL || call.mask == TESSERA_MASK_NONE,
             [&] { return invalid("mask is neither causal nor none"); });
  c->require(call.softmax_scale == nullptr || std::isfinite(*call.softmax_scale),
             [&] { return invalid("softmax_scale is not finite"); });
}

// Pages in the packed layout: e elements, 4 bytes, lie together; so do these units along the fourth axis.
void check_packed_pages(const Call& call, Checker* c) {
  const int64_t unit = 4 / dtype_size(call.k.dtype);
  const int64_t dim = call.q.tensor.shape[call.q.tensor.ndim - 1];
  c->axis("k", call.k, 2, ceil_div(dim, unit), "ceil(D / e) of q");
  c->axis("k", call.k, 4, unit, "e, the elements in 4 bytes");
  c->axis("v", call.v, 0, call.k.shape[0], "P of k");
  c->axis("v", call.v, 1, call.k.shape[1], "Hkv of k");
  c->axis("v", call.v, 2, ceil_div(call.k.shape[3], unit), "ceil(ps / e) of k");
  c->axis("v", call.v, 4, unit, "e, the elements in 4 bytes");
  const auto dense = [&](const char* name, const tessera_tensor& t) {
    c->require(t.stride[3] == unit || t.shape[3] <= 1, [&] {
      return invalid(std::string(name) + " has stride " + std::to_string(t.stride[3]) + " in axis 3; " +
                     std::to_string(unit) + " is expected: units lie next to each other");
    });
  };
  if (c->ok()) dense("k", call.k);
  if (c->ok()) dense("v", call.v);
}

// Everything but the axes of the lists and the outputs.
Sequences check_inputs(const Call& call, KeyForm form, Checker* c) {
  const tessera_tensor& q = call.q.tensor;
  c->tensor("q", q, call.q.axes, {call.packed_q ? 3 : 4}, kFloats);
  c->require(form != KeyForm::kPagedPacked || call.v.ndim == 5 || !given(call.v), [&] {
    return invalid("k has 5 axes, as in the packed layout, and v has " + std::to_string(call.v.ndim) +
                   "; both are expected in one layout");
  });
  c->tensor("k", call.k, key_axes(form), {key_rank(form)}, kFloats);
  c->tensor("v", call.v, value_axes(form), {key_rank(form)}, kFloats);
  c->tensor(call.ids.name, call.ids.tensor, call.ids.axes, {3, call.packed_q ? 3 : 4}, {TESSERA_I32});
  if (!c->ok()) return {};
  c->same_dtype("k", call.k, "q", q);
  c->same_dtype("v", call.v, "q", q);
  c->unit_feature("q", q);
  c->unit_feature("k", call.k);
  c->unit_feature("v", call.v);
  if (form == KeyForm::kPagedPacked) {
    check_packed_pages(call, c);
  } else {
    c->axis("k", call.k, key_rank(form) - 1, q.shape[q.ndim - 1], "D of q");
    for (int i = 0; c->ok() && i < key_rank(form) - 1; ++i) {
      if (form == KeyForm::kBatch && i == 0) c->axis("k", call.k, 0, q.shape[0], "B of q");
      c->axis("v", call.v, i, call.k.shape[i], "the same axis of k");
    }
  }
  if (c->ok()) check_heads(q, call.k, call.v, form, c);
  check_options(call, c);
  if (!c->ok()) return {};
  return check_sequences(q, call.packed_q, call.k, call.sequences, c);
}

// One output: q's first axes (and Dv), no overlap with itself or an input.
void check_output(const char* name, const tessera_tensor& t, bool features, tessera_dtype dtype, const Call& call,
                  Checker* c) {
  const tessera_tensor& q = call.q.tensor;
  const int rank = features ? q.ndim : q.ndim - 1;
  const char* const axes = call.packed_q ? features ? "[total_q, Hq, Dv]" : "[total_q, Hq]"
                           : features    ? "[B, Sq, Hq, Dv]"
                                         : "[B, Sq, Hq]";
  c->tensor(name, t, axes, {rank}, {dtype});
  for (int i = 0; c->ok() && i < q.ndim - 1; ++i) c->axis(name, t, i, q.shape[i], "the same axis of q");
  if (features) {
    c->axis(name, t, rank - 1, value_dim(call.v, key_form(call.sequences, call.k.ndim)), "Dv of v");
    c->unit_feature(name, t);
  }
  c->output(name, t);
  const tessera_sequences& s = call.sequences;
  const Named inputs[] = {{"q", q, ""},
                          {"k", call.k, ""},
                          {"v", call.v, ""},
                          call.ids,
                          {"cu_seqlens_q", s.cu_seqlens_q, ""},
                          {"cu_seqlens_k", s.cu_seqlens_k, ""},
                          {"page_table", s.page_table, ""},
                          {"seqused_k", s.seqused_k, ""},
                          {"q_offset", s.q_offset, ""}};
  for (const Named& in : inputs) c->disjoint(name, t, in.name, in.tensor);
}

void check_out(const tessera_tensor& out, const tessera_tensor& lse, const Call& call, Checker* c) {
  check_output("out", out, true, call.q.tensor.dtype, call, c);
  if (given(lse)) {
    check_output("lse", lse, false, TESSERA_F32, call, c);
    c->disjoint("lse", lse, "out", out);
  }
}

void check_state(const tessera_block_sparse_gqa_prefill_args& a, const Call& call, Checker* c) {
  c->require(!given(a.out) && !given(a.lse), [&] { return invalid("out and lse are not outputs of the state form"); });
  check_output("state_o", a.state_o, true, TESSERA_F32, call, c);
  check_output("state_l", a.state_l, false, TESSERA_F32, call, c);
  check_output("state_m", a.state_m, false, TESSERA_F32, call, c);
  c->disjoint("state_o", a.state_o, "state_l", a.state_l);
  c->disjoint("state_o", a.state_o, "state_m", a.state_m);
  c->disjoint("state_l", a.state_l, "state_m", a.state_m);
}

void fill_inputs(const Call& call, KeyForm form, const Sequences& sequences, Problem* p) {
  const tessera_tensor& q = call.q.tensor;
  *p = {};
  p->sequences = sequences;
  p->kv_heads = call.k.shape[key_heads_axis(form)];
  p->group = q.shape[heads_axis(q)] / p->kv_heads;
  p->dim = q.shape[q.ndim - 1];
  p->dim_v = value_dim(call.v, form);
  p->block = call.block;
  p->dtype = q.dtype;
  p->causal = call.mask == TESSERA_MASK_CAUSAL;
  p->scale = call.softmax_scale != nullptr ? *call.softmax_scale : 1.0f / std::sqrt(static_cast<float>(p->dim));
  p->q = q.data;
  p->q_stride = strides(q, call.packed_q);
  p->k = key_view(form, call.k);
  p->v = key_view(form, call.v);
  p->pages = paging(form, call.k, call.sequences);

  const tessera_tensor& ids = call.ids.tensor;
  const int last = ids.ndim - 1;
  p->ids = static_cast<const int32_t*>(ids.data);
  p->width = ids.shape[last];
  p->ids_request = call.packed_q ? 0 : ids.stride[0];
  p->ids_head = call.packed_q ? ids.stride[0] : ids.ndim == 4 ? ids.stride[1] : 0;
  p->ids_list = ids.stride[last - 1];
  p->ids_entry = ids.stride[last];
}

void fill_out(const tessera_tensor& out, const tessera_tensor& lse, bool packed, Problem* p) {
  p->out = out.data;
  p->out_stride = strides(out, packed);
  p->lse = static_cast<float*>(lse.data);
  p->lse_stride = strides(lse, packed);
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

}  // namespace

Status check(const tessera_block_sparse_gqa_prefill_args& a, bool wants_state, Problem* p) {
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
  c.require(block_q > 0, [&] { return invalid("block_q is " + std::to_string(block_q) + "; accepted: at least 1"); });
  if (c.ok()) {
    const tessera_tensor& ids = a.kv_indices;
    c.axis("kv_indices", ids, 0, a.q.shape[0], "B of q");
    if (ids.ndim == 4) c.axis("kv_indices", ids, 1, a.k.shape[key_heads_axis(form)], "Hkv of k");
    c.axis("kv_indices", ids, ids.ndim - 2, ceil_div(a.q.shape[1], block_q), "nQ = ceil(Sq / block_q)");
  }
  if (c.ok() && wants_state) check_state(a, call, &c);
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
