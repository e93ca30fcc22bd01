#include "ops/block_pool/block_pool.h"

#include <algorithm>

#include "ops/block_pool/plan.h"
#include "ops/block_pool/variants.h"
#include "ops/prepared.h"
#include "ops/select_topk/select_topk.h"

namespace tessera::block_pool {
namespace {

using Call = Prepared<Problem, Sequence, Kernel>;

void pool_tile(const Problem& p, const Plan& plan, char* base, int64_t bh, int64_t tile, int worker) {
  const int64_t b = bh / p.kv_heads;
  if (tile * kTileBlocks < select_topk::scored_blocks(p, b)) {
    plan.kernel->pool(p, plan, base, b, bh % p.kv_heads, tile, worker);
  }
}

void select_lists(const Problem& p, const Plan& plan, char* base, int64_t bh, int64_t task, int worker) {
  const int64_t b = bh / p.kv_heads;
  const int64_t head = bh % p.kv_heads;
  const int64_t first = task * plan.lists_per_task;
  const int64_t end = std::min(first + plan.lists_per_task, p.lists);
  char* scratch = base + plan.workers + static_cast<size_t>(worker) * plan.scratch.bytes;
  const auto* scores = reinterpret_cast<const float*>(scratch + plan.scratch.scores);
  auto* order = reinterpret_cast<uint32_t*>(scratch + plan.scratch.order);
  if (select_topk::any_needs_scores(p, b, first, end)) plan.kernel->score(p, plan, base, b, head, task, worker);
  for (int64_t list = first; list < end; ++list) {
    select_topk::write_ids(p, b, head, list, scores + (list - first) * plan.score_row, order);
  }
}

}  // namespace

Status run(const Problem& problem, const tessera_context& context) {
  const Executor executor(context.executor);
  const Call call(problem, variants(), context, executor);
  if (!call.status.ok()) return call.status;
  const Problem& p = call.problem;
  const Plan& plan = call.plan;
  const Workspace workspace = call.workspace(context);
  char* base = reinterpret_cast<char*>(workspace.data());

  const bool whole = executor.num_parts() == 1;
  if (whole) {
    const auto pool = [&](int64_t i, int worker) {
      pool_tile(p, plan, base, i / plan.block_tiles, i % plan.block_tiles, worker);
    };
    executor.parallel_for(p.requests * p.kv_heads * plan.block_tiles, pool, "pool");
  }
  // A part of a call cannot wait for the others' sums. It does its tasks one after the other, so it makes its own, KV
  // head by KV head.
  int64_t pooled = -1;
  const auto select = [&](int64_t i, int worker) {
    const int64_t bh = i / plan.tasks;
    for (int64_t tile = 0; !whole && bh != pooled && tile < plan.block_tiles; ++tile) {
      pool_tile(p, plan, base, bh, tile, worker);
    }
    if (!whole) pooled = bh;
    select_lists(p, plan, base, bh, i % plan.tasks, worker);
  };
  executor.parallel_for(p.requests * p.kv_heads * plan.tasks, select, "select");
  return {};
}

Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes) {
  return Call::workspace_size(problem, variants(), context, bytes);
}

}  // namespace tessera::block_pool
