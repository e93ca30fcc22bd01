#include "ops/token_attn/dense.h"

#include "ops/layout.h"

namespace tessera::token_attn {
namespace {

block_attn::Strides strides(const View& v) { return {v.row.request, v.row.row, v.head}; }

}  // namespace

bool starts_run(const Problem& p, int64_t r) {
  const Row& row = p.table[r];
  if (!row.dense) return false;
  if (r % p.rows.row_axis == 0) return true;
  const Row& before = p.table[r - 1];
  return !before.dense || before.request != row.request || before.limit + 1 != row.limit;
}

int64_t dense_blocks(const Problem& p) { return ceil_div(p.densest, kDenseBlock); }

block_attn::Problem dense_problem(const Problem& p, block_attn::Cut* cuts, int32_t* ids) {
  int64_t run = -1;
  for (int64_t r = 0; r < p.rows.rows; ++r) {
    const Row& row = p.table[r];
    if (!row.dense) continue;
    // The rows of a request lie where those of q's row axis do.
    if (starts_run(p, r)) cuts[++run] = {{r % p.rows.row_axis, 0, row.key, 0, row.limit - 1}, row.request};
    ++cuts[run].seq.rows;
    cuts[run].seq.keys = row.limit;
  }
  for (int64_t i = 0; i < dense_blocks(p); ++i) ids[i] = static_cast<int32_t>(i);

  block_attn::Problem d = {};
  d.sequences.count = p.runs;
  d.cuts = cuts;
  d.kv_heads = p.kv_heads;
  d.group = p.group;
  d.dim = p.dim;
  d.dim_v = p.dim_v;
  d.block = d.block_q = kDenseBlock;
  d.width = dense_blocks(p);
  d.dtype = d.q_dtype = p.dtype;
  d.causal = true;
  d.scale = p.scale;
  d.q = p.q;
  d.q_stride = strides(p.q_view);
  d.k = p.k;
  d.v = p.v;
  d.pages = p.pages;
  d.ids = ids;
  d.ids_entry = 1;
  d.out = p.out;
  d.out_stride = strides(p.out_view);
  d.lse = p.lse;
  d.lse_stride = strides(p.lse_view);
  d.gate = p.gate;
  d.gate_stride = strides(p.gate_view);
  return d;
}

}  // namespace tessera::token_attn
