#include "ops/block_max/plan.h"

#include <algorithm>

#include "core/check.h"
#include "ops/layout.h"

namespace tessera::block_max {
namespace {

void cut_heads(const Problem& p, Plan* plan) {
  const int64_t parts = p.key_heads == 1 ? 1 : p.heads;
  plan->heads = p.heads / parts;
  plan->groups = p.reduce ? 1 : parts;
  plan->passes = p.reduce ? parts : 1;
  plan->outputs = p.reduce ? 1 : plan->heads;
}

void cut_rows(const Problem& p, Plan* plan) {
  const int64_t token_bytes = std::max<int64_t>(p.blocks, 1) * plan->outputs * static_cast<int64_t>(sizeof(float));
  const int64_t kept = p.selects ? kTileBytes / token_bytes : INT64_MAX;
  const int64_t longest = std::max<int64_t>(1, p.sequences.rows);
  plan->tile_tokens = std::min(longest, std::max<int64_t>(1, std::min(kTileRows / plan->heads, kept)));
  for (int64_t i = 0; i < p.request_count; ++i) {
    p.requests[i].first_tile = plan->tiles;
    plan->tiles += ceil_div(p.requests[i].seq.rows, plan->tile_tokens);
  }
}

// Floats that the block scores of a row tile take until its lists are made.
int64_t tile_scores(const Problem& p, const Plan& plan) {
  return p.selects ? plan.tile_tokens * plan.outputs * p.blocks : 0;
}

// Few tiles cannot occupy the machine. A part of a call cannot wait for the others' chunks.
void cut_keys(const Problem& p, bool whole, Plan* plan) {
  plan->chunk_blocks = std::max<int64_t>(p.blocks, 1);
  const int64_t tasks = plan->tiles * plan->groups;
  if (whole && tasks <= kSplitTasks && tasks * tile_scores(p, *plan) <= kSplitBytes / 4) {
    plan->chunk_blocks = std::min(plan->chunk_blocks, ceil_div(kChunkKeys, p.block));
  }
  plan->chunks = std::max<int64_t>(1, ceil_div(p.blocks, plan->chunk_blocks));
}

}  // namespace

Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers) {
  Plan plan = {};
  plan.kernel = &kernel;
  cut_heads(p, &plan);
  cut_rows(p, &plan);
  cut_keys(p, whole, &plan);
  plan.q_row = round_up(p.dim, kernel.lanes * kernel.pair);
  plan.dot_row = kKeyTile + kernel.lanes;  // a block is read in whole vectors from where it begins

  const int64_t rows = plan.tile_tokens * plan.heads;
  const bool split = plan.chunks > 1;
  Scratch& s = plan.scratch;
  Layout scratch;
  s.q = scratch.add(rows * plan.q_row, 4 / kernel.pair);
  s.visible = scratch.add(plan.tile_tokens, sizeof(int64_t));
  s.limits = scratch.add(plan.tile_tokens, sizeof(int32_t));
  s.dots = scratch.add(kGroupRows * plan.dot_row, sizeof(float));
  s.packed = scratch.add(kKeyTile * ceil_div(p.dim, kernel.pair), 4);
  s.copied = scratch.add(p.pages.packed ? kKeyTile * p.dim : 0, dtype_size(p.dtype));
  s.scores = scratch.add(split ? 0 : tile_scores(p, plan), sizeof(float));
  s.order = scratch.add(p.selects ? p.blocks : 0, sizeof(uint32_t));
  s.bytes = scratch.bytes();

  Layout workspace;
  plan.scores = workspace.add(split ? plan.tiles * plan.groups * tile_scores(p, plan) : 0, sizeof(float));
  plan.workers = workspace.add(workers, static_cast<int64_t>(s.bytes));
  plan.bytes = workspace.bytes();
  return plan;
}

}  // namespace tessera::block_max
