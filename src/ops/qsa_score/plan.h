// How a checked call is cut into tasks. A function of the problem, the variant, whether this call does the whole work and,
// where keys are screened, the number of workers; no choice here changes a bit of the result, except through the variant.
#ifndef TESSERA_OPS_QSA_SCORE_PLAN_H_
#define TESSERA_OPS_QSA_SCORE_PLAN_H_

#include <stddef.h>
#include <stdint.h>

#include "ops/qsa_score/problem.h"

namespace tessera::qsa_score {

struct Kernel;

// Keys that are packed and scored at a time.
constexpr int64_t kKeyTile = 128;
// (row, head) pairs that meet a panel of keys while it is in L1, if a row has no more heads.
constexpr int64_t kGroupHeads = 48;
// Where there are no more tiles than this, each is cut along the keys, into chunks of at least so many.
constexpr int64_t kSplitTiles = 32;
constexpr int64_t kChunkKeys = 4096;
// And no more chunks than whose lists take so much.
constexpr int64_t kSplitBytes = int64_t{16} << 20;
// Tiles of so few rows are screened, if there are codes.
constexpr int64_t kScreenRows = 2;

// Offsets of one worker's arrays in its scratch, in bytes. T = rows of a tile.
struct Scratch {
  size_t q;        // operand [T * heads][q_row]
  size_t active;   // int32 [T]: rows that see keys of the key tile
  size_t low;      // int32 [T]: of those keys, the first that each of them sees ...
  size_t high;     // int32 [T]: ... and where they end
  size_t weights;  // f32 [T][heads], if there are weights
  size_t sums;     // f32 [group_rows][sum_row]: scores
  size_t packed;   // one key tile
  size_t best;     // lists [T] of tile/best.h, if the call selects and has one chunk
  size_t list;     // one more
  size_t screen;   // the rows of screen.h
  size_t bytes;
};

struct Plan {
  const Kernel* kernel;
  int64_t group_rows;  // rows that meet a panel together
  int64_t chunk_keys;
  int64_t chunks;         // > 1: each chunk keeps its best keys, which are then merged
  int64_t best_capacity;  // entries of a list of best keys
  int64_t best_bytes;     // of a list
  int64_t q_row;          // operands per row of q, padded
  int64_t sum_row;        // f32 per row of scores, padded
  Scratch scratch;
  // Offsets in the workspace, in bytes.
  size_t best;     // lists [tiles][chunks][T], where there are more chunks than one
  size_t bars;     // int32 [tiles][kScreenRows], if there are codes: what the chunks of a tile tell each other
  size_t workers;  // [workers][scratch.bytes]
  size_t bytes;
};

// What the kernel is to do: tile `tile` against keys [begin, end). Scores of these columns are written; or the best of
// these keys are collected at `best`.
struct Task {
  int64_t tile;
  int64_t begin, end;
  char* best;
  int32_t* bars;  // of the tile
};

// The steps of a call for one ISA and dtype, and the numbers of the ISA struct that a plan needs.
struct Kernel {
  void (*score)(const Problem&, const Plan&, const Task&, char* scratch);
  // Writes the lists of a tile from the best keys of its chunks, which are `stride` bytes apart.
  void (*write)(const Problem&, const Plan&, int64_t tile, const char* best, size_t stride, char* scratch);
  int lanes;
  int pair;
};

Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers);

}  // namespace tessera::qsa_score

#endif  // TESSERA_OPS_QSA_SCORE_PLAN_H_
