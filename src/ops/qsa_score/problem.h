// A checked call of QSA's indexer: scores of compressed keys, stored or turned into the best ones' ids at once.
#ifndef TESSERA_OPS_QSA_SCORE_PROBLEM_H_
#define TESSERA_OPS_QSA_SCORE_PROBLEM_H_

#include <stdint.h>

#include "core/rows.h"
#include "core/sequences.h"
#include "tessera/tessera.h"

namespace tessera::qsa_score {

constexpr int64_t kDefaultBlock = 4;

// Rows of q that a task takes together: so many that packing the keys for each of them costs little, so few that they stay
// in L2 (196 KB in f32 at D = 128) beside a packed key tile.
constexpr int64_t kTileRows = 384;
// A tile whose lists of best keys would take more than this gets fewer.
constexpr int64_t kTileBytes = int64_t{8} << 20;
// Scores that come to a list at a time, at most: a key tile's and a vector.
constexpr int64_t kListRun = 144;

// A row of queries: its request, the compressed keys [begin, end) that it sees, and its position in tokens (-1: none).
// And, at index i of the table, the first row of tile i.
struct Row {
  int64_t tile;
  int32_t request, position;
  int32_t begin, end;
};

// What says which keys a row sees: its position, an interval, or a count.
struct Visibility {
  int64_t block;  // by position: tokens per key; 0: not by position
  RowInts positions;
  Ints seq_lens_k;
  Ints row_starts, row_ends;
  RowInts context_lens;
};

struct Problem {
  RowForm rows;
  int64_t heads;        // Hi
  int64_t dim;          // D
  int64_t keys;         // that a request can have
  int64_t tile_tokens;  // query rows of a tile, at most
  float scale;
  tessera_dtype dtype;

  const void* q;  // strides in elements, feature stride 1
  RowStrides q_stride;
  int64_t q_head;
  const float* weights;  // null: 1
  RowStrides weights_stride;
  int64_t weights_head;
  KeyView k;
  Paging pages;
  Visibility visibility;
  KeyView codes;  // no data: keys are not screened
  KeyView scales;

  bool selects;   // the topk best keys, else scores
  float* scores;  // [R][columns]
  RowStrides scores_stride;
  int64_t scores_column;
  int64_t columns;
  int64_t topk;
  int32_t* ids;  // null: not wanted
  RowStrides ids_stride;
  int64_t ids_entry;
  int32_t* tokens;  // null: not wanted
  RowStrides tokens_stride;
  int64_t tokens_entry;

  // Once resolved.
  const Row* table;  // [R]
  int64_t tiles;
  int64_t tile_rows;  // of the largest
  int64_t most_keys;  // the largest `end`
};

// Static, so that files built with ISA flags keep their own copies.

// Tile i is rows [tile_begin, tile_end), all of one request.
static inline int64_t tile_begin(const Problem& p, int64_t i) { return p.table[i].tile; }
static inline int64_t tile_end(const Problem& p, int64_t i) {
  return i + 1 < p.tiles ? p.table[i + 1].tile : p.rows.rows;
}

// What screen.h is made for.
constexpr int64_t kScreenDim = 512;
constexpr int64_t kScreenHeads = 1024;

// For screen.h: heads in fours, and what a row takes.
static inline int64_t screen_heads(const Problem& p) { return (p.heads + 3) / 4 * 4; }
static inline int64_t screen_row_bytes(const Problem& p) { return screen_heads(p) * (2 * p.dim + 8); }

// Whether a row's keys must be scored.
static inline bool needs_scores(const Problem& p, const Row& row) {
  const int64_t visible = row.end - row.begin;
  return p.selects ? visible > p.topk : visible > 0;
}

}  // namespace tessera::qsa_score

#endif  // TESSERA_OPS_QSA_SCORE_PROBLEM_H_
