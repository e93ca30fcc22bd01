#include "ops/select_topk/check.h"

#include <algorithm>
#include <string>

#include "ops/layout.h"

namespace tessera::select_topk {
namespace {

void at_least(const char* name, int64_t value, int64_t least, Checker* c) {
  c->require(value >= least, [&] {
    return invalid(std::string(name) + " is " + std::to_string(value) + "; expected at least " + std::to_string(least));
  });
}

void check_inputs(const Args& a, Checker* c) {
  c->tensor("q", a.q, "[B, Sq, Hq, D]", {4}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->tensor("k", a.k, "[B, Sk, Hkv, D]", {4}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->same_dtype("k", a.k, "q", a.q);
  c->unit_feature("q", a.q);
  c->unit_feature("k", a.k);
  c->axis("k", a.k, 0, a.q.shape[0], "B of q");
  c->axis("k", a.k, 3, a.q.shape[3], "D of q");
  const int64_t heads = a.q.shape[2];
  const int64_t kv_heads = a.k.shape[2];
  c->require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, [&] {
    return invalid("q has " + std::to_string(heads) + " heads and k has " + std::to_string(kv_heads) +
                   "; expected a positive multiple");
  });
  c->require(a.q.shape[3] > 0, [&] { return invalid("q needs at least one feature"); });
  c->require(a.q.shape[3] <= kMaxDim, [&] {
    return not_implemented("head dims above " + std::to_string(kMaxDim) + " are not supported; q has " +
                           std::to_string(a.q.shape[3]));
  });
  if (given(a.q_offset)) {
    c->tensor("q_offset", a.q_offset, "[B]", {1}, {TESSERA_I32});
    c->axis("q_offset", a.q_offset, 0, a.q.shape[0], "B of q");
  }
}

void check_options(const Args& a, Checker* c) {
  at_least("topk", a.topk, 1, c);
  at_least("block_size", a.block, 1, c);
  at_least("block_q", a.block_q, 1, c);
  at_least("local_blocks", a.local_blocks, 0, c);
  at_least("init_blocks", a.init_blocks, 0, c);
  c->require(a.local_blocks <= a.topk && a.init_blocks <= a.topk - a.local_blocks, [&] {
    return invalid("local_blocks " + std::to_string(a.local_blocks) + " and init_blocks " +
                   std::to_string(a.init_blocks) + " are more than topk " + std::to_string(a.topk));
  });
}

void check_indices(const Args& a, Checker* c) {
  c->tensor("indices", a.indices, "[B, Hkv, nQ, topk]", {4}, {TESSERA_I32});
  c->axis("indices", a.indices, 0, a.q.shape[0], "B of q");
  c->axis("indices", a.indices, 1, a.k.shape[2], "Hkv of k");
  c->axis("indices", a.indices, 2, ceil_div(a.q.shape[1], a.block_q), "nQ = ceil(Sq / block_q)");
  c->axis("indices", a.indices, 3, a.topk, "topk");
  c->output("indices", a.indices);
  c->disjoint("indices", a.indices, "q", a.q);
  c->disjoint("indices", a.indices, "k", a.k);
  c->disjoint("indices", a.indices, "q_offset", a.q_offset);
}

}  // namespace

void check(const Args& a, Checker* c, Problem* p) {
  check_inputs(a, c);
  check_options(a, c);
  if (c->ok()) check_indices(a, c);
  if (!c->ok()) return;

  p->requests = a.q.shape[0];
  p->queries = a.q.shape[1];
  p->keys = a.k.shape[1];
  p->kv_heads = a.k.shape[2];
  p->group = a.q.shape[2] / p->kv_heads;
  p->dim = a.q.shape[3];
  p->block = a.block;
  p->block_q = std::min(a.block_q, std::max<int64_t>(p->queries, 1));
  p->lists = ceil_div(p->queries, p->block_q);
  p->blocks = ceil_div(p->keys, p->block);
  p->topk = a.topk;
  p->local_blocks = a.local_blocks;
  p->init_blocks = a.init_blocks;
  p->dtype = a.q.dtype;
  p->q = a.q.data;
  p->q_request = a.q.stride[0];
  p->q_token = a.q.stride[1];
  p->q_head = a.q.stride[2];
  p->k = a.k.data;
  p->k_request = a.k.stride[0];
  p->k_token = a.k.stride[1];
  p->k_head = a.k.stride[2];
  p->q_offset = static_cast<const int32_t*>(a.q_offset.data);
  p->q_offset_request = a.q_offset.stride[0];
  p->ids = static_cast<int32_t*>(a.indices.data);
  p->ids_request = a.indices.stride[0];
  p->ids_head = a.indices.stride[1];
  p->ids_list = a.indices.stride[2];
  p->ids_entry = a.indices.stride[3];
}

}  // namespace tessera::select_topk
