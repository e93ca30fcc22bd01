#include "ops/block_attn/inputs.h"

#include <cmath>
#include <string>

#include "core/packed_layout.h"

namespace tessera::block_attn {
namespace {

int heads_axis(const tessera_tensor& q) { return q.ndim - 2; }
int64_t value_dim(const tessera_tensor& v, KeyForm form) {
  return v.shape[form == KeyForm::kPagedPacked ? 3 : v.ndim - 1];
}

void check_heads(const tessera_tensor& q, const tessera_tensor& k, const tessera_tensor& v, KeyForm form, Checker* c) {
  const int64_t heads = q.shape[heads_axis(q)];
  const int64_t kv_heads = k.shape[key_heads_axis(form)];
  const int64_t dim = q.shape[q.ndim - 1];
  const int64_t dim_v = value_dim(v, form);
  c->require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, [&] {
    return invalid("q has " + std::to_string(heads) + " heads and k has " + std::to_string(kv_heads) +
                   "; expected a positive multiple");
  });
  c->require(dim > 0 && dim_v > 0, [&] { return invalid("q and v need at least one feature"); });
  c->head_dim("q", dim);
  c->head_dim("v", dim_v);
}

// k and v have one dtype, and q that one or f32.
void check_dtypes(const Call& call, Checker* c) {
  const tessera_tensor& q = call.q.tensor;
  if (q.dtype != TESSERA_F32) c->same_dtype("k", call.k, "q", q);
  c->same_dtype("v", call.v, "k", call.k);
}

void check_options(const Call& call, Checker* c) {
  c->require(call.block > 0,
             [&] { return invalid("block_size is " + std::to_string(call.block) + "; expected at least 1"); });
  c->require(call.mask == TESSERA_MASK_CAUSAL || call.mask == TESSERA_MASK_NONE,
             [&] { return invalid("mask is neither causal nor none"); });
  c->require(call.softmax_scale == nullptr || std::isfinite(*call.softmax_scale),
             [&] { return invalid("softmax_scale is not finite"); });
}

void check_packed_pages(const Call& call, Checker* c) {
  check_packed_keys("k", call.k, call.q.tensor.shape[call.q.tensor.ndim - 1], "ceil(D/e), D of q", c);
  c->axis("v", call.v, 0, call.k.shape[0], "P of k");
  c->axis("v", call.v, 1, call.k.shape[1], "Hkv of k");
  check_packed_values("v", call.v, call.k.shape[3], "ceil(ps/e), ps of k", c);
}

}  // namespace

Strides strides(const tessera_tensor& t, bool packed) {
  return packed ? Strides{0, t.stride[0], t.stride[1]} : Strides{t.stride[0], t.stride[1], t.stride[2]};
}

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
  check_dtypes(call, c);
  c->unit_feature("q", q);
  if (form == KeyForm::kPagedPacked) {
    check_packed_pages(call, c);
  } else {
    c->unit_feature("k", call.k);
    c->unit_feature("v", call.v);
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

void fill_inputs(const Call& call, KeyForm form, const Sequences& sequences, Problem* p) {
  const tessera_tensor& q = call.q.tensor;
  *p = {};
  p->sequences = sequences;
  p->kv_heads = call.k.shape[key_heads_axis(form)];
  p->group = q.shape[heads_axis(q)] / p->kv_heads;
  p->dim = q.shape[q.ndim - 1];
  p->dim_v = value_dim(call.v, form);
  p->block = call.block;
  p->dtype = call.k.dtype;
  p->q_dtype = q.dtype;
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

}  // namespace tessera::block_attn
