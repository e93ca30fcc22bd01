#include "ops/block_attn/check.h"

#include <cmath>
#include <utility>

#include "core/check.h"

namespace tessera::block_attn {
namespace {

using Args = tessera_block_sparse_gqa_prefill_args;

Strides strides(const tessera_tensor& t) { return {t.stride[0], t.stride[1], t.stride[2]}; }

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

void check_inputs(const Args& a, int64_t block, int64_t block_q, Checker* c) {
  c->tensor("q", a.q, "[B, Sq, Hq, D]", {4}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->tensor("k", a.k, "[B, Sk, Hkv, D]", {4}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->tensor("v", a.v, "[B, Sk, Hkv, Dv]", {4}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->tensor("kv_indices", a.kv_indices, "[B, nQ, W] or [B, Hkv, nQ, W]", {3, 4}, {TESSERA_I32});
  c->same_dtype("k", a.k, "q", a.q);
  c->same_dtype("v", a.v, "q", a.q);
  c->unit_feature("q", a.q);
  c->unit_feature("k", a.k);
  c->unit_feature("v", a.v);
  c->axis("k", a.k, 0, a.q.shape[0], "B of q");
  c->axis("k", a.k, 3, a.q.shape[3], "D of q");
  c->axis("v", a.v, 0, a.q.shape[0], "B of q");
  c->axis("v", a.v, 1, a.k.shape[1], "Sk of k");
  c->axis("v", a.v, 2, a.k.shape[2], "Hkv of k");
  const int64_t heads = a.q.shape[2];
  const int64_t kv_heads = a.k.shape[2];
  c->require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, [&] {
    return invalid("q has " + std::to_string(heads) + " heads and k has " + std::to_string(kv_heads) +
                   "; expected a positive multiple");
  });
  c->require(a.q.shape[3] > 0 && a.v.shape[3] > 0, [&] { return invalid("q and v need at least one feature"); });
  c->require(a.q.shape[3] <= kMaxDim && a.v.shape[3] <= kMaxDim, [&] {
    return not_implemented("head dims above " + std::to_string(kMaxDim) + " are not supported; q has " +
                           std::to_string(a.q.shape[3]) + ", v has " + std::to_string(a.v.shape[3]));
  });
  c->require(block > 0, [&] { return invalid("block_size is " + std::to_string(block) + "; expected at least 1"); });
  c->require(block_q > 0, [&] { return invalid("block_q is " + std::to_string(block_q) + "; expected at least 1"); });
  if (!c->ok()) return;
  c->axis("kv_indices", a.kv_indices, 0, a.q.shape[0], "B of q");
  if (a.kv_indices.ndim == 4) c->axis("kv_indices", a.kv_indices, 1, kv_heads, "Hkv of k");
  c->axis("kv_indices", a.kv_indices, a.kv_indices.ndim - 2, ceil_div(a.q.shape[1], block_q),
          "nQ = ceil(Sq / block_q)");
  c->require(a.mask == TESSERA_MASK_CAUSAL || a.mask == TESSERA_MASK_NONE,
             [&] { return invalid("mask is neither causal nor none"); });
  c->require(a.softmax_scale == nullptr || std::isfinite(*a.softmax_scale),
             [&] { return invalid("softmax_scale is not finite"); });
  if (given(a.q_offset)) {
    c->tensor("q_offset", a.q_offset, "[B]", {1}, {TESSERA_I32});
    c->axis("q_offset", a.q_offset, 0, a.q.shape[0], "B of q");
  }
}

// One output: q's first axes (and Dv), no overlap with itself, an input or another output.
void check_output(const char* name, const tessera_tensor& t, bool features, tessera_dtype dtype, const Args& a,
                  Checker* c) {
  c->tensor(name, t, features ? "[B, Sq, Hq, Dv]" : "[B, Sq, Hq]", {features ? 4 : 3}, {dtype});
  c->axis(name, t, 0, a.q.shape[0], "B of q");
  c->axis(name, t, 1, a.q.shape[1], "Sq of q");
  c->axis(name, t, 2, a.q.shape[2], "Hq of q");
  if (features) {
    c->axis(name, t, 3, a.v.shape[3], "Dv of v");
    c->unit_feature(name, t);
  }
  c->output(name, t);
  const std::pair<const char*, const tessera_tensor*> inputs[] = {
      {"q", &a.q}, {"k", &a.k}, {"v", &a.v}, {"kv_indices", &a.kv_indices}, {"q_offset", &a.q_offset}};
  for (const auto& [in_name, in] : inputs) c->disjoint(name, t, in_name, *in);
}

void check_outputs(const Args& a, bool wants_state, Checker* c) {
  const bool has_state = given(a.state_o) || given(a.state_l) || given(a.state_m);
  if (wants_state) {
    c->require(!given(a.out) && !given(a.lse),
               [&] { return invalid("out and lse are not outputs of the state form"); });
    check_output("state_o", a.state_o, true, TESSERA_F32, a, c);
    check_output("state_l", a.state_l, false, TESSERA_F32, a, c);
    check_output("state_m", a.state_m, false, TESSERA_F32, a, c);
    c->disjoint("state_o", a.state_o, "state_l", a.state_l);
    c->disjoint("state_o", a.state_o, "state_m", a.state_m);
    c->disjoint("state_l", a.state_l, "state_m", a.state_m);
    return;
  }
  c->require(!has_state, [&] { return invalid("state_o, state_l and state_m are outputs of the state form only"); });
  check_output("out", a.out, true, a.q.dtype, a, c);
  if (given(a.lse)) {
    check_output("lse", a.lse, false, TESSERA_F32, a, c);
    c->disjoint("lse", a.lse, "out", a.out);
  }
}

}  // namespace

Status check(const Args& a, bool wants_state, Problem* p) {
  const int64_t block = a.block_size == 0 ? kDefaultBlock : a.block_size;
  const int64_t block_q = a.block_q == 0 ? block : a.block_q;
  Checker c;
  check_inputs(a, block, block_q, &c);
  if (c.ok()) check_outputs(a, wants_state, &c);
  if (!c.ok()) return c.take();

  *p = {};
  p->requests = a.q.shape[0];
  p->queries = a.q.shape[1];
  p->keys = a.k.shape[1];
  p->kv_heads = a.k.shape[2];
  p->group = a.q.shape[2] / p->kv_heads;
  p->dim = a.q.shape[3];
  p->dim_v = a.v.shape[3];
  p->block = block;
  p->block_q = block_q;
  p->lists = ceil_div(p->queries, block_q);
  p->blocks = ceil_div(p->keys, block);
  p->dtype = a.q.dtype;
  p->causal = a.mask == TESSERA_MASK_CAUSAL;
  p->scale = a.softmax_scale != nullptr ? *a.softmax_scale : 1.0f / std::sqrt(static_cast<float>(p->dim));

  p->q = a.q.data;
  p->k = a.k.data;
  p->v = a.v.data;
  p->q_stride = strides(a.q);
  p->k_stride = strides(a.k);
  p->v_stride = strides(a.v);

  const tessera_tensor& ids = a.kv_indices;
  const int last = ids.ndim - 1;
  p->ids = static_cast<const int32_t*>(ids.data);
  p->width = ids.shape[last];
  p->ids_request = ids.stride[0];
  p->ids_head = ids.ndim == 4 ? ids.stride[1] : 0;
  p->ids_list = ids.stride[last - 1];
  p->ids_entry = ids.stride[last];
  p->q_offset = static_cast<const int32_t*>(a.q_offset.data);
  p->q_offset_request = a.q_offset.stride[0];

  p->out = a.out.data;
  p->out_stride = strides(a.out);
  p->lse = static_cast<float*>(a.lse.data);
  p->lse_stride = strides(a.lse);
  p->o = static_cast<float*>(a.state_o.data);
  p->o_stride = strides(a.state_o);
  p->l = static_cast<float*>(a.state_l.data);
  p->m = static_cast<float*>(a.state_m.data);
  p->l_stride = strides(a.state_l);
  p->m_stride = strides(a.state_m);
  return {};
}

}  // namespace tessera::block_attn
