#include "ops/qsa_score/plan.h"

#include <algorithm>

#include "ops/layout.h"
#include "tile/best.h"

namespace tessera::qsa_score {
namespace {

// Few tiles cannot occupy the machine. A part of a call cannot wait for the others' chunks.
void cut_keys(const Problem& p, bool whole, int workers, Plan* plan) {
  plan->chunks = 1;
  if (whole && p.tiles <= kSplitTiles) {
    const double lists = static_cast<double>(p.tiles * p.tile_rows) * static_cast<double>(plan->best_bytes);
    const auto most = static_cast<int64_t>(static_cast<double>(kSplitBytes) / std::max(lists, 1.0));
    // The first keys of a chunk have no bar to fail at, so those that are screened are as long as can be.
    const bool screened = p.codes.data != nullptr && p.tile_rows <= kScreenRows;
    const int64_t wanted = screened ? ceil_div(workers, std::max<int64_t>(p.tiles, 1)) : INT64_MAX;
    plan->chunks = std::clamp<int64_t>(std::min(p.most_keys / kChunkKeys, wanted), 1, std::max<int64_t>(most, 1));
  }
  plan->chunk_keys = round_up(std::max<int64_t>(ceil_div(p.most_keys, plan->chunks), 1), kKeyTile);
  plan->chunks = std::max<int64_t>(1, ceil_div(p.most_keys, plan->chunk_keys));
}

}  // namespace

Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers) {
  Plan plan = {};
  plan.kernel = &kernel;
  plan.group_rows = std::max<int64_t>(1, kGroupHeads / p.heads);
  if (p.selects) plan.best_capacity = best_capacity(p.topk, p.most_keys, kListRun);
  if (p.selects) plan.best_bytes = best_bytes(plan.best_capacity);
  cut_keys(p, whole, workers, &plan);
  plan.q_row = round_up(p.dim, kernel.lanes * kernel.pair);
  plan.sum_row = kKeyTile + kernel.lanes;  // read in whole vectors from any key on

  Scratch& s = plan.scratch;
  Layout scratch;
  s.q = scratch.add(p.tile_rows * p.heads, plan.q_row * (4 / kernel.pair));
  s.active = scratch.add(p.tile_rows, sizeof(int32_t));
  s.low = scratch.add(p.tile_rows, sizeof(int32_t));
  s.high = scratch.add(p.tile_rows, sizeof(int32_t));
  s.weights = scratch.add(p.weights != nullptr ? p.tile_rows * p.heads : 0, sizeof(float));
  s.sums = scratch.add(plan.group_rows * plan.sum_row, sizeof(float));
  s.packed = scratch.add(kKeyTile * ceil_div(p.dim, kernel.pair), 4);
  s.best = scratch.add(plan.chunks == 1 ? p.tile_rows : 0, plan.best_bytes);
  s.list = scratch.add(1, plan.best_bytes);
  s.screen = scratch.add(p.codes.data != nullptr ? kScreenRows : 0, screen_row_bytes(p));
  s.bytes = scratch.bytes();

  Layout workspace;
  plan.best = workspace.add(plan.chunks == 1 ? 0 : p.tiles * plan.chunks * p.tile_rows, plan.best_bytes);
  plan.bars = workspace.add(p.codes.data != nullptr ? p.tiles * kScreenRows : 0, sizeof(int32_t));
  plan.workers = workspace.add(workers, static_cast<int64_t>(s.bytes));
  plan.bytes = workspace.bytes();
  return plan;
}

}  // namespace tessera::qsa_score
