#include "ops/block_max/block_max.h"

#include <algorithm>

#include "ops/block_max/plan.h"
#include "ops/block_max/variants.h"
#include "ops/prepared.h"
#include "ops/select_topk/select_topk.h"

namespace tessera::block_max {

// ---- For Prepared ----

// Before each request and after the last there may be rows that belong to none.
int64_t table_entries(const Problem& p) { return 2 * p.sequences.count + 1; }

void resolve(Request* table, Problem* p) {
  p->requests = table;
  p->request_count = 0;
  int64_t blocks = 0;
  int64_t taken = 0;  // rows before this belong to earlier requests
  int64_t end = 0;    // rows before this are in the table
  const auto add = [&](const Sequence& seq, int64_t b) {
    if (seq.rows > 0) table[p->request_count++] = {seq, b, 0};
    blocks = std::max(blocks, seq.rows > 0 ? blocks_before(*p, seq.keys) : 0);
  };
  for (int64_t b = 0; b < p->sequences.count; ++b) {
    const Sequence seq = tessera::resolve(p->sequences, b, &taken);
    if (p->sequences.packed_q) add({end, seq.row - end, 0, 0, 0}, 0);
    add(seq, b);
    end = seq.row + seq.rows;
  }
  if (p->sequences.packed_q) add({end, p->sequences.rows - end, 0, 0, 0}, 0);
  if (p->selects) p->blocks = blocks;
}

namespace {

using Call = Prepared<Problem, Request, Kernel>;

// One row tile for one group of heads: tokens [first, end) of a request.
struct Tile {
  const Request* request;
  int64_t first, end;
  int64_t group;
  int64_t index;  // among all
};

Tile tile_of(const Problem& p, const Plan& plan, int64_t i) {
  const Request* const requests = p.requests;
  const Request* const after = std::partition_point(requests, requests + p.request_count,
                                                    [&](const Request& r) { return r.first_tile * plan.groups <= i; });
  const Request& r = *(after - 1);
  const int64_t tiles = ceil_div(r.seq.rows, plan.tile_tokens);
  const int64_t local = i - r.first_tile * plan.groups;
  const int64_t tile = tiles - 1 - local % tiles;  // late tokens first: they see the most keys
  return {&r, tile * r.seq.rows / tiles, (tile + 1) * r.seq.rows / tiles, local / tiles, i};
}

int64_t head_of(const Plan& plan, const Tile& tile) { return tile.group * plan.heads; }

// ---- Scores ----

void score_tile(const Problem& p, const Plan& plan, const Tile& tile, int64_t chunk, char* scratch) {
  const Strides& s = p.scores_stride;
  const int64_t head = head_of(plan, tile);
  const int64_t row = tile.request->seq.row + tile.first;
  const Task task = {tile.request,
                     tile.first,
                     tile.end,
                     chunk * plan.chunk_blocks,
                     std::min((chunk + 1) * plan.chunk_blocks, p.blocks),
                     head,
                     p.scores + tile.request->b * s.request + head * s.head + row * s.row,
                     s.row,
                     p.reduce ? 0 : s.head,
                     s.entry};
  plan.kernel->score(p, plan, task, scratch);
}

// ---- Lists ----

select_topk::Ranges ranges_of(const Problem& p, const Sequence& s, int64_t t) {
  return select_topk::ranges(p.rule, s.offset + t, s.offset + t, s.keys);
}

// The first token of the tile that needs scores; those after it need them too.
int64_t first_scored(const Problem& p, const Tile& tile) {
  int64_t t = tile.first;
  while (t < tile.end && !ranges_of(p, tile.request->seq, t).needs_scores()) ++t;
  return t;
}

// scores: f32 [T][outputs][blocks].
void score_lists(const Problem& p, const Plan& plan, const Tile& tile, int64_t chunk, float* scores, char* scratch) {
  const int64_t first = first_scored(p, tile);
  const int64_t row = plan.outputs * p.blocks;
  const int64_t blocks = blocks_before(p, tile.request->seq.keys);
  const int64_t first_block = chunk * plan.chunk_blocks;
  if (first == tile.end || first_block >= blocks) return;
  const Task task = {tile.request,
                     first,
                     tile.end,
                     first_block,
                     std::min(first_block + plan.chunk_blocks, blocks),
                     head_of(plan, tile),
                     scores + (first - tile.first) * row,
                     row,
                     p.reduce ? 0 : p.blocks,
                     1};
  plan.kernel->score(p, plan, task, scratch);
}

void write_lists(const Problem& p, const Plan& plan, const Tile& tile, const float* scores, uint32_t* order) {
  const Strides& s = p.ids_stride;
  for (int64_t t = tile.first; t < tile.end; ++t) {
    const select_topk::Ranges ranges = ranges_of(p, tile.request->seq, t);
    for (int64_t h = 0; h < plan.outputs; ++h, scores += p.blocks) {
      int32_t* const ids = p.ids + tile.request->b * s.request + (head_of(plan, tile) + h) * s.head +
                           (tile.request->seq.row + t) * s.row;
      select_topk::write_ids(p.rule, ranges, scores, order, ids, s.entry);
    }
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

  const int64_t tile_scores = plan.tile_tokens * plan.outputs * p.blocks;
  const bool split = plan.chunks > 1;
  const auto scratch_of = [&](int worker) {
    return base + plan.workers + static_cast<size_t>(worker) * plan.scratch.bytes;
  };
  const auto kept = [&](const Tile& tile, char* scratch) {
    return split ? reinterpret_cast<float*>(base + plan.scores) + tile.index * tile_scores
                 : reinterpret_cast<float*>(scratch + plan.scratch.scores);
  };
  const auto write = [&](const Tile& tile, char* scratch) {
    write_lists(p, plan, tile, kept(tile, scratch), reinterpret_cast<uint32_t*>(scratch + plan.scratch.order));
  };

  executor.parallel_for(
      plan.tiles * plan.groups * plan.chunks,
      [&](int64_t i, int worker) {
        const Tile tile = tile_of(p, plan, i / plan.chunks);
        char* const scratch = scratch_of(worker);
        if (!p.selects) return score_tile(p, plan, tile, i % plan.chunks, scratch);
        score_lists(p, plan, tile, i % plan.chunks, kept(tile, scratch), scratch);
        if (!split) write(tile, scratch);
      },
      "score");
  if (!p.selects || !split) return {};
  executor.parallel_for(
      plan.tiles * plan.groups, [&](int64_t i, int worker) { write(tile_of(p, plan, i), scratch_of(worker)); },
      "select");
  return {};
}

Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes) {
  return Call::workspace_size(problem, variants(), context, bytes);
}

}  // namespace tessera::block_max
