#include "ops/append_keys/check.h"

#include "core/check_rows.h"
#include "ops/compress_keys/check.h"

namespace tessera::append_keys {
namespace {

using compress_keys::check_rotation;
using compress_keys::check_rule;
using compress_keys::kKeyTypes;
using compress_keys::rows_of;
using compress_keys::Turns;
using Args = tessera_qsa_append_keys_args;

void check_requests(const Args& a, Problem* p, Checker* c) {
  c->tensor("raw_keys", a.raw_keys, "[B, n, D] or [total, D]", {2, 3}, kKeyTypes);
  c->unit_feature("raw_keys", a.raw_keys);
  if (!c->ok()) return;
  Sequences& s = p->sequences;
  s = {};
  s.packed_q = a.raw_keys.ndim == 2;
  s.rows = s.seqlen_q = a.raw_keys.shape[s.packed_q ? 0 : 1];
  s.count = a.raw_keys.shape[0];
  p->rows = s.packed_q ? s.rows : s.count * s.rows;
  if (s.packed_q) {
    s.cu_q = check_bounds("cu_seqlens_q", a.cu_seqlens_q, &s.count, c);
  } else {
    c->require(!given(a.cu_seqlens_q),
               [] { return invalid("cu_seqlens_q is for packed rows; raw_keys have an axis for the requests"); });
  }
  s.q_offset = check_ints("seq_lens", a.seq_lens, "[B]", s.count, "B", c);
  p->raw = s.packed_q ? compress_keys::Rows{static_cast<char*>(a.raw_keys.data), 0,
                                            a.raw_keys.stride[0] * dtype_size(a.raw_keys.dtype)}
                      : rows_of(a.raw_keys);
}

void check_rotation(const Args& a, Problem* p, Checker* c) {
  if (given(a.block_positions)) c->tensor("block_positions", a.block_positions, "[B, M]", {2}, {TESSERA_I32});
  const Turns turns = {"block_positions",        a.block_positions,  a.cos, a.sin,
                       "[B, M, rotary_dim / 2]", p->sequences.count, -1};
  p->rotation = check_rotation(turns, p->rule, c);
}

void check_ring(const Args& a, Problem* p, Checker* c) {
  c->tensor("ring", a.ring, "[slots, capacity, D]", {3}, kKeyTypes);
  c->same_dtype("ring", a.ring, "raw_keys", a.raw_keys);
  c->axis("ring", a.ring, 2, p->rule.dim, "D of raw_keys");
  if (!c->ok()) return;
  p->ring = {rows_of(a.ring), a.ring.shape[0], a.ring.shape[1], {}};
  c->require(p->ring.capacity >= p->rule.block - 1, [&] {
    return invalid("ring has room for " + std::to_string(p->ring.capacity) +
                   " tokens of a request; expected at least " + std::to_string(p->rule.block - 1) + ", block_size - 1");
  });
  if (given(a.ring_slots)) {
    p->ring.slot = check_ints("ring_slots", a.ring_slots, "[B]", p->sequences.count, "B", c);
  } else {
    c->require(p->ring.slots >= p->sequences.count, [&] {
      return invalid("ring has " + std::to_string(p->ring.slots) + " slots for " + std::to_string(p->sequences.count) +
                     " requests; ring_slots is missing");
    });
  }
}

void check_cache(const Args& a, Problem* p, Checker* c) {
  Cache& cache = p->cache;
  const bool paged = given(a.page_table);
  const int rank = a.cache.ndim;
  if (paged) {
    c->tensor("cache", a.cache, "[P, ps, D] or [P, ps, 1, D]", {3, 4}, kKeyTypes);
  } else {
    c->tensor("cache", a.cache, "[B, N, D]; pages come with page_table", {3}, kKeyTypes);
  }
  c->same_dtype("cache", a.cache, "raw_keys", a.raw_keys);
  if (!c->ok()) return;
  if (rank == 4) c->axis("cache", a.cache, 2, 1, "one key head");
  c->axis("cache", a.cache, rank - 1, p->rule.dim, "D of raw_keys");
  cache = {rows_of(a.cache), nullptr, 0, 0, a.cache.shape[0], a.cache.shape[1], 1};
  if (paged) {
    c->tensor("page_table", a.page_table, "[B, max_pages]", {2}, {TESSERA_I32});
    c->axis("page_table", a.page_table, 0, p->sequences.count, "B");
    cache.table = static_cast<const int32_t*>(a.page_table.data);
    cache.table_request = a.page_table.stride[0];
    cache.table_entry = a.page_table.stride[1];
    cache.max_pages = a.page_table.shape[1];
  } else {
    c->axis("cache", a.cache, 0, p->sequences.count, "B");
  }
}

void check_destination(const char* name, const tessera_tensor& out, const Args& a, Checker* c) {
  c->unit_feature(name, out);
  c->output(name, out);
  c->disjoint(name, out, "raw_keys", a.raw_keys);
  c->disjoint(name, out, "cu_seqlens_q", a.cu_seqlens_q);
  c->disjoint(name, out, "seq_lens", a.seq_lens);
  c->disjoint(name, out, "norm_weight", a.rule.norm_weight);
  c->disjoint(name, out, "block_positions", a.block_positions);
  c->disjoint(name, out, "cos", a.cos);
  c->disjoint(name, out, "sin", a.sin);
  c->disjoint(name, out, "ring_slots", a.ring_slots);
  c->disjoint(name, out, "page_table", a.page_table);
}

}  // namespace

Status check(const Args& a, Problem* p) {
  Checker c;
  check_requests(a, p, &c);
  if (c.ok()) p->rule = check_rule(a.rule, a.raw_keys, &c);
  if (!c.ok()) return c.take();
  check_rotation(a, p, &c);
  check_ring(a, p, &c);
  if (c.ok()) check_cache(a, p, &c);
  check_destination("ring", a.ring, a, &c);
  check_destination("cache", a.cache, a, &c);
  c.disjoint("cache", a.cache, "ring", a.ring);
  return c.take();
}

}  // namespace tessera::append_keys
