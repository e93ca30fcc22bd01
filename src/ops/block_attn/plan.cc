#include "ops/block_attn/plan.h"

#include <algorithm>

#include "core/check.h"
#include "ops/layout.h"

namespace tessera::block_attn {
namespace {

struct Longest {
  int64_t rows = 1;
  int64_t keys = 1;
  int64_t blocks = 0;
  int64_t chunks = 1;
};

// `cut`: the requests have blocks and chunks by now.
Longest longest_of(const Request* requests, int64_t count, bool cut) {
  Longest longest;
  for (int64_t b = 0; b < count; ++b) {
    longest.rows = std::max(longest.rows, requests[b].seq.rows);
    longest.keys = std::max(longest.keys, requests[b].seq.keys);
    if (!cut) continue;
    longest.blocks = std::max(longest.blocks, requests[b].blocks);
    longest.chunks = std::max(longest.chunks, requests[b].chunks);
  }
  return longest;
}

// Tokens of a list are cut evenly, or several short lists share a tile.
void cut_queries(const Problem& p, int64_t longest_rows, Plan* plan) {
  const int64_t tokens = std::max<int64_t>(1, plan->kernel->tile_rows / p.group);
  const int64_t longest = std::min(p.block_q, longest_rows);
  plan->tiles_per_list = ceil_div(longest, tokens);
  plan->lists_per_tile = std::clamp<int64_t>(tokens / longest, 1, kTileLists);
  plan->tile_tokens =
      plan->tiles_per_list > 1 ? ceil_div(longest, plan->tiles_per_list) : plan->lists_per_tile * longest;
}

void cut_keys(const Problem& p, int64_t longest_keys, Plan* plan) {
  plan->key_tile = std::min({p.block, kKeyTile, longest_keys});
  plan->tiles_per_block = ceil_div(std::min(p.block, longest_keys), plan->key_tile);
  plan->chunk_tiles = std::max<int64_t>(1, kChunkKeys / plan->key_tile);
}

// In the packed layout, with units of the ISA's size, no key tile across two pages, and whole vectors everywhere.
bool pages_are_panels(const Problem& p, const Plan& plan) {
  const Kernel& kernel = *plan.kernel;
  const int64_t tile = std::min(p.block, kKeyTile);
  return p.pages.packed && kernel.pair * dtype_size(p.dtype) == 4 && p.pages.page_size % tile == 0 &&
         p.block % tile == 0 && tile % (kernel.lanes * kernel.pair) == 0 && p.dim % kernel.pair == 0 &&
         p.dim_v % kernel.lanes == 0;
}

void cut_requests(const Problem& p, bool whole, Request* requests, Plan* plan) {
  int64_t slots = 0;
  for (int64_t b = 0; b < p.sequences.count; ++b) {
    Request& r = requests[b];
    r.lists = ceil_div(r.seq.rows, p.block_q);
    r.blocks = ceil_div(r.seq.keys, p.block);
    r.tiles = plan->tiles_per_list > 1 ? r.lists * plan->tiles_per_list : ceil_div(r.lists, plan->lists_per_tile);
    r.first_tile = plan->tiles;
    plan->tiles += r.tiles;
    const int64_t most = std::min(p.width, r.blocks) * plan->tiles_per_block;
    r.chunks = std::max<int64_t>(1, ceil_div(most, plan->chunk_tiles));
    r.split = whole && r.chunks > 1 && r.tiles <= kSplitTiles;
    r.first_task = plan->tasks;
    r.first_partial = plan->partials;
    plan->tasks += r.tiles * (r.split ? r.chunks : 1);
    plan->partials += r.split ? r.tiles * r.chunks : 0;
    // A part of a call cannot wait for the packing of the others.
    r.source = pages_are_panels(p, *plan) ? Source::kInPlace
               : whole && r.tiles > 1     ? Source::kPackOnce
                                          : Source::kDirect;
    r.first_slot = slots;
    r.first_block = plan->packed_blocks;
    r.slots = 0;
    if (r.source != Source::kPackOnce) continue;
    int64_t listed = 0;
    r.slots = __builtin_mul_overflow(r.lists, p.width, &listed) ? r.blocks : std::min(r.blocks, listed);
    slots += r.slots;
    plan->packed_blocks += used_words(r) * 64;
  }
}

void lay_out_scratch(const Problem& p, const Longest& longest, bool reads_directly, Plan* plan) {
  const int64_t lanes = plan->kernel->lanes;
  const int64_t pair = plan->kernel->pair;
  const int64_t operand = 4 / pair;
  const int64_t tokens = plan->tile_tokens;
  const int64_t rows = tokens * p.group;
  plan->q_row = round_up(p.dim, lanes * pair);
  plan->o_row = round_up(p.dim_v, lanes);
  plan->score_row = round_up(plan->key_tile, lanes * pair);
  plan->packed_k_bytes = static_cast<size_t>(round_up(plan->key_tile, lanes) * ceil_div(p.dim, pair) * 4);
  plan->packed_v_bytes = static_cast<size_t>(plan->o_row * ceil_div(plan->key_tile, pair) * 4);

  Scratch& s = plan->scratch;
  Layout layout;
  s.members = layout.add(longest.blocks, sizeof(uint64_t));
  s.touched = layout.add(ceil_div(longest.blocks, 64), sizeof(uint64_t));
  s.visible = layout.add(tokens, sizeof(int64_t));
  s.q = layout.add(rows * plan->q_row, operand);
  s.o = layout.add(rows * plan->o_row, sizeof(float));
  s.m = layout.add(rows, sizeof(float));
  s.l = layout.add(rows * lanes, sizeof(float));
  s.max = layout.add(rows * lanes, sizeof(float));
  s.sum_o = layout.add(longest.chunks > 1 ? rows * plan->o_row : 0, sizeof(float));
  s.sum = layout.add(longest.chunks > 1 ? rows * 3 : 0, sizeof(float));
  s.scores = layout.add(kGroupRows * plan->score_row, sizeof(float));
  s.probs = pair == 1 ? s.scores : layout.add(kGroupRows * plan->score_row, operand);
  s.rows = layout.add(rows, sizeof(int32_t));
  s.limits = layout.add(rows, sizeof(int32_t));
  s.values = layout.add(std::min(plan->o_row, plan->kernel->panel_columns), ceil_div(plan->key_tile, pair) * 4);
  s.copied = layout.add(p.pages.packed ? 2 * kKeyTile * (p.dim + p.dim_v) : 0, dtype_size(p.dtype));
  const int64_t direct = reads_directly ? 1 : 0;
  plan->panel_rows = round_up(rows / plan->lists_per_tile, lanes);
  s.panels = layout.add(direct * plan->lists_per_tile * plan->panel_rows, ceil_div(p.dim, pair) * 4);
  s.direct = layout.add(direct, static_cast<int64_t>(plan->kernel->direct_bytes(p.dim)));
  s.bytes = layout.bytes();
}

void lay_out_workspace(const Problem& p, int64_t slots, int workers, Plan* plan) {
  const int64_t rows = plan->tile_tokens * p.group;
  const int64_t packed_tiles = p.kv_heads * slots * plan->tiles_per_block;
  const int64_t words = p.kv_heads * (plan->packed_blocks / 64);
  plan->partial_bytes = static_cast<size_t>(round_up(rows * (plan->o_row + 3) * 4, 64));
  Layout layout;
  plan->used = layout.add(words, sizeof(uint64_t));
  plan->rank = layout.add(words, sizeof(int32_t));
  plan->packed = layout.add(packed_tiles, static_cast<int64_t>(plan->packed_k_bytes + plan->packed_v_bytes));
  plan->finite = layout.add(packed_tiles, 1);
  plan->partial = layout.add(p.kv_heads * plan->partials, static_cast<int64_t>(plan->partial_bytes));
  plan->workers = layout.add(workers, static_cast<int64_t>(plan->scratch.bytes));
  plan->bytes = layout.bytes();
}

}  // namespace

Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers) {
  Request* const requests = p.requests;
  Plan plan = {};
  plan.kernel = &kernel;
  const int64_t count = p.sequences.count;
  const Longest given = longest_of(requests, count, false);
  cut_queries(p, given.rows, &plan);
  cut_keys(p, given.keys, &plan);
  cut_requests(p, whole, requests, &plan);
  const Longest longest = longest_of(requests, count, true);
  const bool direct =
      std::any_of(requests, requests + count, [](const Request& r) { return r.source == Source::kDirect; });
  lay_out_scratch(p, longest, direct, &plan);
  lay_out_workspace(p, count == 0 ? 0 : requests[count - 1].first_slot + requests[count - 1].slots, workers, &plan);
  return plan;
}

}  // namespace tessera::block_attn
