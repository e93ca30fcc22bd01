// How a checked call is cut into tasks. A pure function of the problem, the variant and whether this call does the
// whole work; no choice here changes a bit of the result, except through the variant.
#ifndef TESSERA_OPS_BLOCK_POOL_PLAN_H_
#define TESSERA_OPS_BLOCK_POOL_PLAN_H_

#include <stddef.h>
#include <stdint.h>

#include "ops/select_topk/problem.h"

namespace tessera::block_pool {

using Problem = select_topk::Problem;
struct Kernel;

// Blocks whose summed keys are packed together: four vectors of the widest ISA.
constexpr int64_t kTileBlocks = 64;
// Lists scored together, fewer where N is so large that their scores would leave the cache.
constexpr int64_t kTaskLists = 48;
constexpr int64_t kScoreBytes = int64_t{1} << 20;

// Offsets of one worker's arrays in its scratch, in bytes.
struct Scratch {
  size_t rows;    // f32 [max(kTileBlocks, lists of a task)][dim_row]: sums of keys, or of queries
  size_t scores;  // f32 [lists of a task][score_row]
  size_t order;   // uint32 [N], for the selection
  size_t bytes;
};

struct Plan {
  const Kernel* kernel;
  int64_t lists_per_task;
  int64_t tasks;        // per request and KV head
  int64_t block_tiles;  // ceil(N / kTileBlocks)
  bool keep_all;        // sums of all requests and KV heads are made first, else of one at a time
  int64_t dim_row;      // f32 per row of sums, padded
  int64_t score_row;    // f32 per row of scores, padded
  size_t packed_bytes;  // of one tile of blocks
  Scratch scratch;
  // Offsets in the workspace, in bytes.
  size_t packed;   // [B, Hkv or 1][block_tiles][packed_bytes]
  size_t workers;  // [workers][scratch.bytes]
  size_t bytes;
};

// The steps of a call for one ISA and dtype. `base` is the workspace, `worker` names a scratch that no other thread
// uses meanwhile.
struct Kernel {
  // Sums the keys of each block of a tile, and packs the sums.
  void (*pool)(const Problem&, const Plan&, char* base, int64_t b, int64_t head, int64_t block_tile, int worker);
  // Fills row i of the worker's `scores` for list `task * lists_per_task + i`.
  void (*score)(const Problem&, const Plan&, char* base, int64_t b, int64_t head, int64_t task, int worker);
  int lanes;
};

// `whole`: the call does all tasks, not a part of them.
Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers);

}  // namespace tessera::block_pool

#endif  // TESSERA_OPS_BLOCK_POOL_PLAN_H_
