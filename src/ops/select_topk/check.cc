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

Sequences check_inputs(const Args& a, KeyForm form, Checker* c) {
  c->tensor("q", a.q, "[B, Sq, Hq, D]", {4}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->require(form != KeyForm::kPagedPacked, [&] {
    return not_implemented("k has 5 axes, as in the packed layout; expected pages " +
                           std::string(key_axes(KeyForm::kPaged)));
  });
  c->tensor("k", a.k, key_axes(form), {4}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c->same_dtype("k", a.k, "q", a.q);
  c->unit_feature("q", a.q);
  c->unit_feature("k", a.k);
  c->axis("k", a.k, 3, a.q.shape[3], "D of q");
  const int64_t heads = a.q.shape[2];
  const int64_t kv_heads = a.k.shape[key_heads_axis(form)];
  c->require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, [&] {
    return invalid("q has " + std::to_string(heads) + " heads and k has " + std::to_string(kv_heads) +
                   "; expected a positive multiple");
  });
  c->require(a.q.shape[3] > 0, [&] { return invalid("q needs at least one feature"); });
  c->head_dim("q", a.q.shape[3]);
  return c->ok() ? check_sequences(a.q, false, a.k, a.sequences, c) : Sequences{};
}

void check_indices(const Args& a, KeyForm form, Checker* c) {
  c->tensor("indices", a.indices, "[B, Hkv, nQ, topk]", {4}, {TESSERA_I32});
  c->axis("indices", a.indices, 0, a.q.shape[0], "B of q");
  c->axis("indices", a.indices, 1, a.k.shape[key_heads_axis(form)], "Hkv of k");
  c->axis("indices", a.indices, 2, ceil_div(a.q.shape[1], a.block_q), "nQ = ceil(Sq / block_q)");
  c->axis("indices", a.indices, 3, a.rule.topk, "topk");
  c->output("indices", a.indices);
  c->disjoint("indices", a.indices, "q", a.q);
  c->disjoint("indices", a.indices, "k", a.k);
  c->disjoint("indices", a.indices, "q_offset", a.sequences.q_offset);
  c->disjoint("indices", a.indices, "page_table", a.sequences.page_table);
  c->disjoint("indices", a.indices, "seqused_k", a.sequences.seqused_k);
}

}  // namespace

void check_rule(const Rule& rule, Checker* c) {
  at_least("topk", rule.topk, 1, c);
  at_least("block_size", rule.block, 1, c);
  at_least("local_blocks", rule.local_blocks, 0, c);
  at_least("init_blocks", rule.init_blocks, 0, c);
  c->require(rule.local_blocks <= rule.topk && rule.init_blocks <= rule.topk - rule.local_blocks, [&] {
    return invalid("local_blocks " + std::to_string(rule.local_blocks) + " and init_blocks " +
                   std::to_string(rule.init_blocks) + " are more than topk " + std::to_string(rule.topk));
  });
}

void check(const Args& a, Checker* c, Problem* p) {
  const KeyForm form = key_form(a.sequences, a.k.ndim);
  const Sequences sequences = check_inputs(a, form, c);
  check_rule(a.rule, c);
  at_least("block_q", a.block_q, 1, c);
  if (c->ok()) check_indices(a, form, c);
  if (!c->ok()) return;

  p->requests = a.q.shape[0];
  p->queries = a.q.shape[1];
  p->kv_heads = a.k.shape[key_heads_axis(form)];
  p->group = a.q.shape[2] / p->kv_heads;
  p->dim = a.q.shape[3];
  p->block_q = std::min(a.block_q, std::max<int64_t>(p->queries, 1));
  p->lists = ceil_div(p->queries, p->block_q);
  p->rule = a.rule;
  p->dtype = a.q.dtype;
  p->q = a.q.data;
  p->q_request = a.q.stride[0];
  p->q_token = a.q.stride[1];
  p->q_head = a.q.stride[2];
  p->k = key_view(form, a.k);
  p->pages = paging(form, a.k, a.sequences);
  p->sequences = sequences;
  p->ids = static_cast<int32_t*>(a.indices.data);
  p->ids_request = a.indices.stride[0];
  p->ids_head = a.indices.stride[1];
  p->ids_list = a.indices.stride[2];
  p->ids_entry = a.indices.stride[3];
}

}  // namespace tessera::select_topk
