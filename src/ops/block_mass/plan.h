// How a checked call is cut into tasks. A pure function of the problem, the variant and whether this call does the
// whole work; no choice here changes a bit of the result, except through the variant.
#ifndef TESSERA_OPS_BLOCK_MASS_PLAN_H_
#define TESSERA_OPS_BLOCK_MASS_PLAN_H_

#include <stddef.h>
#include <stdint.h>

#include "ops/block_mass/problem.h"

namespace tessera::block_mass {

struct Kernel;

// Sampled rows (token, head) that go through a key tile together, unless the group alone is larger.
constexpr int64_t kTileRows = 48;
// Keys per packed tile: as many whole blocks as fit, or a piece of a longer block.
constexpr int64_t kTileKeys = 128;
// Longer contexts than this allows get fewer lists per task, so that the sums of a tile stay near the cache.
constexpr int64_t kTaskBytes = int64_t{4} << 20;

// Offsets of one worker's arrays in its scratch, in bytes. R = rows of a tile.
struct Scratch {
  size_t q;        // operand [R][q_row]
  size_t visible;  // int64 [R]: keys visible to each row
  size_t scores;   // f32 [min(R, kTileRows)][score_row]
  size_t max;      // f32 [R][segment_row]: maximum of each segment's scores, in log2 units
  size_t sum;      // f32 [R][segment_row]: sum of 2^(score - max)
  size_t mass;     // f32 [lists of a task][segment_row]
  size_t order;    // uint32 [N], for the selection
  size_t packed;   // one key tile, for calls that pack on the fly
  size_t bytes;
};

struct Plan {
  const Kernel* kernel;
  int64_t samples;         // sampled tokens of a full list
  int64_t tile_samples;    // of which a row tile takes this many at most
  int64_t tiles_per_list;  // > 1: a list's rows are cut into this many row tiles, one after the other
  int64_t lists_per_task;  // > 1: a row tile covers this many lists
  int64_t tasks;           // per request and KV head
  // A segment is what gets one (max, sum) pair: a block, or a piece of a block longer than kTileKeys.
  int64_t segment_keys;
  int64_t pieces;         // segments per block
  int64_t segments;       // of all keys
  int64_t tile_segments;  // segments per key tile
  int64_t key_tiles;
  bool pack_once;       // every visible key tile is packed once per call, before the scores
  int64_t q_row;        // operands per row of q, padded
  int64_t score_row;    // f32 per row of scores, padded
  int64_t segment_row;  // f32 per row of segments, padded
  size_t packed_bytes;  // of one key tile
  Scratch scratch;
  // Offsets in the workspace, in bytes.
  size_t packed;   // [B, Hkv, key tiles][packed_bytes]
  size_t workers;  // [workers][scratch.bytes]
  size_t bytes;    // of the whole workspace
};

// The steps of a call for one ISA and dtype. `base` is the workspace, `worker` names a scratch that no other thread
// uses meanwhile.
struct Kernel {
  // Packs a key tile of KV head `head` of request b into the workspace.
  void (*pack)(const Problem&, const Plan&, char* base, int64_t b, int64_t head, int64_t key_tile);
  // Fills row i of the worker's `mass` with the mass of each block, for list `task * lists_per_task + i`.
  void (*score)(const Problem&, const Plan&, char* base, int64_t b, int64_t head, int64_t task, int worker);
  int lanes;
  int pair;
};

// `whole`: the call does all tasks, not a part of them.
Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers);

}  // namespace tessera::block_mass

#endif  // TESSERA_OPS_BLOCK_MASS_PLAN_H_
