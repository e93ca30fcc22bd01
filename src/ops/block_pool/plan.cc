#include "ops/block_pool/plan.h"

#include <algorithm>

#include "ops/layout.h"

namespace tessera::block_pool {

Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers) {
  Plan plan = {};
  plan.kernel = &kernel;
  plan.block_tiles = ceil_div(p.blocks, kTileBlocks);
  plan.score_row = std::max<int64_t>(plan.block_tiles, 1) * kTileBlocks;
  plan.lists_per_task = std::clamp<int64_t>(kScoreBytes / (plan.score_row * 4), 1, kTaskLists);
  plan.tasks = ceil_div(p.lists, plan.lists_per_task);
  plan.keep_all = whole;
  plan.dim_row = round_up(p.dim, kernel.lanes);
  plan.packed_bytes = static_cast<size_t>(kTileBlocks * p.dim * 4);

  Layout scratch;
  plan.scratch.rows = scratch.add(std::max(kTileBlocks, plan.lists_per_task) * plan.dim_row, sizeof(float));
  plan.scratch.scores = scratch.add(plan.lists_per_task, plan.score_row * 4);
  plan.scratch.order = scratch.add(p.blocks, sizeof(uint32_t));
  plan.scratch.bytes = scratch.bytes();

  Layout workspace;
  const int64_t heads = plan.keep_all ? p.requests * p.kv_heads : 1;
  plan.packed = workspace.add(heads * plan.block_tiles, static_cast<int64_t>(plan.packed_bytes));
  plan.workers = workspace.add(workers, static_cast<int64_t>(plan.scratch.bytes));
  plan.bytes = workspace.bytes();
  return plan;
}

}  // namespace tessera::block_pool
