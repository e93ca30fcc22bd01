#include "ops/token_attn/plan.h"

#include <algorithm>

#include "core/check.h"
#include "ops/layout.h"
#include "ops/token_attn/dense.h"

namespace tessera::token_attn {
namespace {

int64_t most_chunks(const Problem& p) {
  int64_t most = 1;
  for (int64_t r = 0; r < p.rows.rows; ++r) {
    if (!p.table[r].dense) most = std::max(most, ceil_div(p.table[r].count, chunk_tokens(p, p.table[r])));
  }
  return most;
}

// A part of a call cannot wait for the chunks of others.
void cut(const Problem& p, bool whole, Plan* plan) {
  const int64_t rows = p.rows.rows;
  plan->chunks = most_chunks(p);
  plan->split = whole && rows <= kSplitRows && plan->chunks > 1 && rows * plan->chunks <= kSplitTasks;
  plan->task_heads = plan->split && rows * plan->chunks <= kFewTasks ? 1 : p.kv_heads;
  plan->tasks = plan->split ? rows * plan->chunks * (p.kv_heads / plan->task_heads) : ceil_div(rows, kTaskRows);
}

}  // namespace

Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers) {
  Plan plan = {};
  plan.kernel = &kernel;
  cut(p, whole, &plan);
  const int64_t lanes = kernel.lanes;
  const int64_t operand = 4 / kernel.pair;
  plan.q_row = round_up(p.dim, lanes * kernel.pair);
  plan.o_row = round_up(p.dim_v, lanes);
  plan.partial_floats = plan.o_row + 3;

  const int64_t heads = p.kv_heads * p.group;
  Scratch& s = plan.scratch;
  Layout scratch;
  s.q = scratch.add(heads * plan.q_row, operand);
  s.o = scratch.add(heads * plan.o_row, sizeof(float));
  s.m = scratch.add(heads, sizeof(float));
  s.l = scratch.add(heads * lanes, sizeof(float));
  s.max = scratch.add(heads * lanes, sizeof(float));
  s.sum_o = scratch.add(heads * plan.o_row, sizeof(float));
  s.sum = scratch.add(heads * 3, sizeof(float));
  s.scores = scratch.add(kGroupRows * kTokenTile, sizeof(float));
  s.probs = kernel.pair == 1 ? s.scores : scratch.add(kGroupRows * kTokenTile, operand);
  s.packed = scratch.add(kTokenTile * ceil_div(p.dim, kernel.pair), 4);
  s.copied = scratch.add(p.pages.packed ? kTokenTile * (p.dim + p.dim_v) : 0, dtype_size(p.dtype));
  s.bytes = scratch.bytes();

  Layout workspace;
  plan.cuts = workspace.add(p.runs, sizeof(block_attn::Cut));
  plan.ids = workspace.add(dense_blocks(p), sizeof(int32_t));
  plan.partial = workspace.add(plan.split ? p.rows.rows * plan.chunks * heads : 0, plan.partial_floats * 4);
  plan.workers = workspace.add(workers, static_cast<int64_t>(s.bytes));
  plan.bytes = workspace.bytes();
  return plan;
}

}  // namespace tessera::token_attn
