#include "ops/block_mass/block_mass.h"

#include <algorithm>

#include "ops/block_mass/plan.h"
#include "ops/block_mass/variants.h"
#include "ops/prepared.h"
#include "ops/select_topk/select_topk.h"

namespace tessera::block_mass {
namespace {

using Call = Prepared<Problem, Sequence, Kernel>;

void pack_visible(const Problem& p, const Plan& plan, char* base, const Executor& executor) {
  executor.parallel_for(
      p.requests * p.kv_heads * plan.key_tiles,
      [&](int64_t i, int) {
        const int64_t bh = i / plan.key_tiles;
        const int64_t b = bh / p.kv_heads;
        const int64_t tile = i % plan.key_tiles;
        const int64_t first_block = tile * plan.tile_segments / plan.pieces;
        if (first_block < select_topk::scored_blocks(p, b)) plan.kernel->pack(p, plan, base, b, bh % p.kv_heads, tile);
      },
      "pack");
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

  if (plan.pack_once) pack_visible(p, plan, base, executor);
  // Late queries first: they have the most to do.
  executor.parallel_for(
      p.requests * p.kv_heads * plan.tasks,
      [&](int64_t i, int worker) {
        const int64_t b = i / plan.tasks / p.kv_heads;
        const int64_t head = i / plan.tasks % p.kv_heads;
        const int64_t task = plan.tasks - 1 - i % plan.tasks;
        const int64_t first = task * plan.lists_per_task;
        const int64_t end = std::min(first + plan.lists_per_task, p.lists);
        const char* scratch = base + plan.workers + static_cast<size_t>(worker) * plan.scratch.bytes;
        const auto* mass = reinterpret_cast<const float*>(scratch + plan.scratch.mass);
        auto* order = reinterpret_cast<uint32_t*>(const_cast<char*>(scratch) + plan.scratch.order);
        if (select_topk::any_needs_scores(p, b, first, end)) plan.kernel->score(p, plan, base, b, head, task, worker);
        for (int64_t list = first; list < end; ++list) {
          select_topk::write_ids(p, b, head, list, mass + (list - first) * plan.segment_row, order);
        }
      },
      "score");
  return {};
}

Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes) {
  return Call::workspace_size(problem, variants(), context, bytes);
}

}  // namespace tessera::block_mass
