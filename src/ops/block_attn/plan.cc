#include "ops/block_attn/plan.h"

#include <algorithm>

#include "ops/layout.h"

namespace tessera::block_attn {
namespace {

// Tokens of a list are cut evenly, or several short lists share a tile.
void cut_queries(const Problem& p, const Kernel& kernel, Plan* plan) {
  const int64_t tokens = std::max<int64_t>(1, kernel.tile_rows / p.group);
  const int64_t longest = std::max<int64_t>(1, std::min(p.block_q, p.queries));
  plan->tiles_per_list = ceil_div(longest, tokens);
  plan->lists_per_tile = std::clamp<int64_t>(tokens / longest, 1, kTileLists);
  if (plan->tiles_per_list > 1) {
    plan->tile_tokens = ceil_div(longest, plan->tiles_per_list);
    plan->tiles = p.lists * plan->tiles_per_list;
  } else {
    plan->tile_tokens = plan->lists_per_tile * longest;
    plan->tiles = ceil_div(p.lists, plan->lists_per_tile);
  }
}

void cut_keys(const Problem& p, bool whole, Plan* plan) {
  plan->key_tile = std::min({p.block, kKeyTile, std::max<int64_t>(p.keys, 1)});
  plan->tiles_per_block = ceil_div(std::min(p.block, std::max<int64_t>(p.keys, 1)), plan->key_tile);
  plan->key_tiles = p.blocks * plan->tiles_per_block;
  plan->chunk_tiles = std::max<int64_t>(1, kChunkKeys / plan->key_tile);
  const int64_t most = std::min(p.width, p.blocks) * plan->tiles_per_block;
  plan->max_chunks = std::max<int64_t>(1, ceil_div(most, plan->chunk_tiles));
  // Few tiles cannot occupy the machine, and their partials are small; many tiles need no splitting.
  plan->split = whole && plan->max_chunks > 1 && plan->tiles <= kSplitTiles;
  // Packing pays when a packed key tile is used more than once. A part of a call cannot wait for the others' packing.
  plan->pack_once = whole && plan->tiles > 1;
}

void lay_out_scratch(const Problem& p, Plan* plan) {
  const int64_t lanes = plan->kernel->lanes;
  const int64_t pair = plan->kernel->pair;
  const int64_t operand = 4 / pair;
  const int64_t tokens = plan->tile_tokens;
  const int64_t rows = tokens * p.group;
  const bool chunks = plan->max_chunks > 1;
  plan->q_row = round_up(p.dim, lanes * pair);
  plan->o_row = round_up(p.dim_v, lanes);
  plan->score_row = round_up(plan->key_tile, lanes * pair);
  plan->packed_k_bytes = static_cast<size_t>(round_up(plan->key_tile, lanes) * ceil_div(p.dim, pair) * 4);
  plan->packed_v_bytes = static_cast<size_t>(plan->o_row * ceil_div(plan->key_tile, pair) * 4);

  Scratch& s = plan->scratch;
  Layout layout;
  s.members = layout.add(p.blocks, sizeof(uint64_t));
  s.touched = layout.add(ceil_div(p.blocks, 64), sizeof(uint64_t));
  s.visible = layout.add(tokens, sizeof(int64_t));
  s.q = layout.add(rows * plan->q_row, operand);
  s.o = layout.add(rows * plan->o_row, sizeof(float));
  s.m = layout.add(rows, sizeof(float));
  s.l = layout.add(rows * lanes, sizeof(float));
  s.max = layout.add(rows * lanes, sizeof(float));
  s.sum_o = layout.add(chunks ? rows * plan->o_row : 0, sizeof(float));
  s.sum = layout.add(chunks ? rows * 3 : 0, sizeof(float));
  s.scores = layout.add(kGroupRows * plan->score_row, sizeof(float));
  s.probs = pair == 1 ? s.scores : layout.add(kGroupRows * plan->score_row, operand);
  s.rows = layout.add(rows, sizeof(int32_t));
  s.limits = layout.add(rows, sizeof(int32_t));
  s.q_rows = layout.add(rows, sizeof(void*));
  s.o_rows = layout.add(rows, sizeof(void*));
  const auto packed = static_cast<int64_t>(plan->packed_k_bytes + plan->packed_v_bytes);
  s.packed = layout.add(plan->pack_once ? 0 : 1, packed);
  s.patched = layout.add(1, static_cast<int64_t>(plan->packed_v_bytes));
  s.bytes = layout.bytes();
}

void lay_out_workspace(const Problem& p, int workers, Plan* plan) {
  const int64_t heads = p.requests * p.kv_heads;
  const int64_t rows = plan->tile_tokens * p.group;
  const int64_t packed_tiles = plan->pack_once ? heads * plan->key_tiles : 0;
  const int64_t partials = plan->split ? heads * plan->tiles * plan->max_chunks : 0;
  plan->partial_bytes = static_cast<size_t>(round_up(rows * (plan->o_row + 3) * 4, 64));
  Layout layout;
  plan->used = layout.add(plan->pack_once ? heads * ceil_div(p.blocks, 64) : 0, sizeof(uint64_t));
  plan->packed = layout.add(packed_tiles, static_cast<int64_t>(plan->packed_k_bytes + plan->packed_v_bytes));
  plan->finite = layout.add(packed_tiles, 1);
  plan->partial = layout.add(partials, static_cast<int64_t>(plan->partial_bytes));
  plan->workers = layout.add(workers, static_cast<int64_t>(plan->scratch.bytes));
  plan->bytes = layout.bytes();
}

}  // namespace

Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers) {
  Plan plan = {};
  plan.kernel = &kernel;
  cut_queries(p, kernel, &plan);
  cut_keys(p, whole, &plan);
  lay_out_scratch(p, &plan);
  lay_out_workspace(p, workers, &plan);
  return plan;
}

}  // namespace tessera::block_attn
