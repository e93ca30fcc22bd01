#include "ops/block_mass/plan.h"

#include <algorithm>

#include "ops/layout.h"

namespace tessera::block_mass {
namespace {

void cut_keys(const Problem& p, int64_t lanes, Plan* plan) {
  const int64_t longest = std::max<int64_t>(1, std::min(p.rule.block, p.keys));
  plan->segment_keys = std::min(longest, kTileKeys);
  plan->pieces = ceil_div(longest, plan->segment_keys);
  plan->segments = p.blocks * plan->pieces;
  plan->tile_segments = plan->pieces > 1 ? 1 : kTileKeys / plan->segment_keys;
  plan->key_tiles = ceil_div(plan->segments, plan->tile_segments);
  plan->segment_row = round_up(std::max<int64_t>(plan->segments, 1), lanes);
}

// A list's rows are cut evenly, or several short lists share a tile.
void cut_queries(const Problem& p, Plan* plan) {
  const int64_t longest = std::max<int64_t>(1, std::min(p.block_q, p.queries));
  plan->samples = ceil_div(longest, p.stride) + ((longest - 1) % p.stride != 0 ? 1 : 0);
  const int64_t samples_per_tile = std::max<int64_t>(1, kTileRows / p.group);
  plan->tiles_per_list = ceil_div(plan->samples, samples_per_tile);
  const int64_t rows_kept = kTaskBytes / (2 * static_cast<int64_t>(sizeof(float))) / plan->segment_row;
  const int64_t fitting = std::min(samples_per_tile, rows_kept / p.group) / plan->samples;
  plan->lists_per_task = std::max<int64_t>(1, fitting);
  plan->tile_samples = ceil_div(plan->samples, plan->tiles_per_list) * plan->lists_per_task;
  plan->tasks = ceil_div(p.lists, plan->lists_per_task);
}

}  // namespace

Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers) {
  Plan plan = {};
  plan.kernel = &kernel;
  const int64_t lanes = kernel.lanes;
  const int64_t operand = 4 / kernel.pair;
  cut_keys(p, lanes, &plan);
  cut_queries(p, &plan);
  // A part of a call cannot wait for the others' packing.
  plan.pack_once = whole && plan.tasks * plan.tiles_per_list > 1;
  const int64_t tile_keys = plan.tile_segments * plan.segment_keys;
  plan.q_row = round_up(p.dim, lanes * kernel.pair);
  plan.score_row =
      round_up(tile_keys, lanes) + lanes;  // the last segment is read in whole vectors from where it begins
  plan.packed_bytes = static_cast<size_t>(round_up(tile_keys, lanes) * ceil_div(p.dim, kernel.pair) * 4);

  const int64_t rows = plan.tile_samples * p.group;
  const auto packed_bytes = static_cast<int64_t>(plan.packed_bytes);
  Scratch& s = plan.scratch;
  Layout scratch;
  s.q = scratch.add(rows * plan.q_row, operand);
  s.visible = scratch.add(rows, sizeof(int64_t));
  s.scores = scratch.add(std::min(rows, kTileRows) * plan.score_row, sizeof(float));
  s.max = scratch.add(rows, plan.segment_row * 4);
  s.sum = scratch.add(rows, plan.segment_row * 4);
  s.mass = scratch.add(plan.lists_per_task, plan.segment_row * 4);
  s.order = scratch.add(p.blocks, sizeof(uint32_t));
  s.packed = scratch.add(plan.pack_once ? 0 : 1, packed_bytes);
  s.bytes = scratch.bytes();

  Layout workspace;
  plan.packed = workspace.add(plan.pack_once ? p.requests * p.kv_heads * plan.key_tiles : 0, packed_bytes);
  plan.workers = workspace.add(workers, static_cast<int64_t>(s.bytes));
  plan.bytes = workspace.bytes();
  return plan;
}

}  // namespace tessera::block_mass
