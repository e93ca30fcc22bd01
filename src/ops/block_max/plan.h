// How a checked call is cut into tasks. It depends on the problem, the lengths of its requests, the variant and whether
// this call does the whole work, and on nothing else; no choice here changes a bit of the result, except through the
// variant. Each request's share of the tasks is written to the problem's table of requests.
#ifndef TESSERA_OPS_BLOCK_MAX_PLAN_H_
#define TESSERA_OPS_BLOCK_MAX_PLAN_H_

#include <stddef.h>
#include <stdint.h>

#include "ops/block_max/problem.h"

namespace tessera::block_max {

struct Kernel;

// Keys that are packed and scored at a time. A block may be a part of a key tile, or span several.
constexpr int64_t kKeyTile = 128;
// Rows that go through the micro-kernel together.
constexpr int kGroupRows = 48;
// Rows of a tile: so many that packing the keys for each of them costs little, so few that they stay in L2 (196 KB in
// f32 at D = 128) beside a packed key tile. A tile whose block scores would take more than kTileBytes gets fewer.
constexpr int64_t kTileRows = 384;
constexpr int64_t kTileBytes = int64_t{8} << 20;
// Where there are no more tasks than this, and the block scores of all of them take no more than this, each is cut along
// the keys, into chunks of at least so many.
constexpr int64_t kSplitTasks = 32;
constexpr int64_t kSplitBytes = int64_t{16} << 20;
constexpr int64_t kChunkKeys = 8192;

// Offsets of one worker's arrays in its scratch, in bytes. T = tokens, R = rows of a tile.
struct Scratch {
  size_t q;        // operand [R][q_row]
  size_t visible;  // int64 [T]: keys that each token sees
  size_t limits;   // int32 [T]: of those of a key tile
  size_t dots;     // f32 [kGroupRows][dot_row]
  size_t packed;   // one key tile
  size_t copied;   // In [kKeyTile][D]: rows of pages in the packed layout
  size_t scores;   // f32 [T][outputs][blocks], for lists that are not cut along the keys
  size_t order;    // uint32 [blocks], for lists
  size_t bytes;
};

struct Plan {
  const Kernel* kernel;
  int64_t tile_tokens;   // T: most query tokens of a row tile
  int64_t tiles;         // row tiles of all requests
  int64_t heads;         // index heads that share a key head, whose rows make up a tile: R = T * heads
  int64_t groups;        // tasks per row tile: one per key head, unless their results are reduced to one
  int64_t passes;        // key heads that a task goes through one after the other
  int64_t outputs;       // heads of the results of a task
  int64_t chunk_blocks;  // blocks per chunk
  int64_t chunks;        // > 1: tasks are cut along the keys; lists are then made from `scores`, afterwards
  int64_t q_row;         // operands per row of q, padded
  int64_t dot_row;       // f32 per row of dots, padded
  Scratch scratch;
  // Offsets in the workspace, in bytes.
  size_t scores;   // f32 [tiles][groups][T][outputs][blocks]
  size_t workers;  // [workers][scratch.bytes]
  size_t bytes;
};

// What the kernel is to score: tokens [first, end) of a request against the keys of blocks [first_block, end_block), for
// `heads` index heads from `head` on, or for all heads one after the other.
struct Task {
  const Request* request;
  int64_t first, end;
  int64_t first_block, end_block;
  int64_t head;
  float* scores;                                    // of token `first`, block 0; every block of the range is written
  int64_t token_stride, head_stride, block_stride;  // head stride 0: the maximum over the heads
};

// The step of a call for one ISA and dtype, and the numbers of the ISA struct that a plan needs.
struct Kernel {
  void (*score)(const Problem&, const Plan&, const Task&, char* scratch);
  int lanes;
  int pair;
};

// Numbers the row tiles of p.requests. `whole`: the call does all tasks, not a part of them.
Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers);

}  // namespace tessera::block_max

#endif  // TESSERA_OPS_BLOCK_MAX_PLAN_H_
