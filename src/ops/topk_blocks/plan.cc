#include "ops/topk_blocks/plan.h"

#include <algorithm>

#include "ops/layout.h"
#include "tile/best.h"

namespace tessera::topk_blocks {

// A part of a call cannot wait for the others' chunks.
Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers) {
  Plan plan = {};
  plan.kernel = &kernel;
  plan.capacity = best_capacity(p.topk, p.entries, kRun + kernel.lanes);
  plan.list_bytes = best_bytes(plan.capacity);

  plan.chunks = 1;
  if (whole && p.rows > 0 && p.rows <= kSplitRows) {
    plan.chunks =
        std::clamp<int64_t>(p.entries / kChunk, 1, std::max<int64_t>(1, kSplitBytes / plan.list_bytes / p.rows));
  }
  plan.chunk = std::max<int64_t>(1, ceil_div(p.entries, plan.chunks));
  plan.chunks = std::max<int64_t>(1, ceil_div(p.entries, plan.chunk));

  Layout workspace;
  plan.lists = workspace.add(plan.chunks == 1 ? 0 : p.rows * plan.chunks, plan.list_bytes);
  plan.workers = workspace.add(workers, plan.list_bytes);
  plan.bytes = workspace.bytes();
  return plan;
}

}  // namespace tessera::topk_blocks
