// How a checked call is cut into tasks. It depends on the problem, the lengths of its requests, the variant and whether
// this call does the whole work, and on nothing else; no choice here changes a bit of the result, except through the
// variant. Each request's share of the tasks is written to the problem's table of requests.
#ifndef TESSERA_OPS_BLOCK_ATTN_PLAN_H_
#define TESSERA_OPS_BLOCK_ATTN_PLAN_H_

#include <stddef.h>
#include <stdint.h>

#include "ops/block_attn/problem.h"

namespace tessera::block_attn {

struct Kernel;

// Keys per softmax step and per packed piece: a block, or a piece of a block longer than this.
constexpr int64_t kKeyTile = 128;
// A row's selected keys are worked through in chunks of this many (in whole key tiles), each a state of its own, merged in
// order. The chunk is a property of the row's list alone, so a row has the same bits whether one task does all its chunks
// or, for decode, each chunk is a task.
constexpr int64_t kChunkKeys = 2048;
// Rows that go through QK, softmax and PV together.
constexpr int kGroupRows = 48;
// Lists that one tile of tokens may span: a block's members are one 64-bit mask.
constexpr int64_t kTileLists = 64;
// A request with no more query tiles per KV head than this has its chunks done as tasks of their own: few tiles cannot
// occupy the machine, and their partials are small.
constexpr int64_t kSplitTiles = 4;

// Where a request's tasks have K and V from; see keys.h. Packing pays when a packed key tile is used more than once.
enum class Source : int8_t { kPackOnce, kInPlace, kDirect };

// One request and its share of the call.
struct Request {
  Sequence seq;
  int64_t b;
  int64_t lists;       // nQ = ceil(rows / block_q)
  int64_t blocks;      // N = ceil(keys / block)
  int64_t tiles;       // query tiles per KV head
  int64_t first_tile;  // those of the requests before
  int64_t chunks;      // no list has more
  bool split;          // each chunk is a task
  // Tasks per KV head and partials per KV head of the requests before.
  int64_t first_task;
  int64_t first_partial;
  Source source;
  int64_t slots;        // per KV head: blocks that can be on a list
  int64_t first_slot;   // x Hkv: those of the requests before
  int64_t first_block;  // x Hkv: the blocks of the requests before that pack once; counted in whole words of 64
};

// Offsets of one worker's arrays in its scratch, in bytes. R = rows of a tile, T = tokens of a tile.
struct Scratch {
  size_t members;  // uint64 [max N]: bit i set if list i of the tile holds the block
  size_t touched;  // uint64 [ceil(max N / 64)]: blocks that any list holds
  size_t visible;  // int64 [T]: keys visible to each token
  size_t q;        // operand [R][q_row]
  size_t o;        // f32 [R][o_row]
  size_t m;        // f32 [R]
  size_t l;        // f32 [R][lanes]
  size_t max;      // f32 [R][lanes]
  size_t sum_o;    // f32 [R][o_row]: the chunks merged so far
  size_t sum;      // f32 [R][3]: their m, l, max
  size_t scores;   // f32 [kGroupRows][score_row]
  size_t probs;    // operand [kGroupRows][score_row]; aliases scores where an operand is an f32
  size_t rows;     // int32 [R]: rows that take part in a key tile
  size_t limits;   // int32 [R]: their visible keys in it
  size_t values;   // one packed panel of V
  size_t copied;   // In [2][kKeyTile][D + Dv]: rows of pages in the packed layout
  // For direct requests:
  size_t panels;  // packed rows of q, [lists of a tile][panel_rows]
  size_t direct;  // DirectScores
  size_t bytes;
};

struct Plan {
  const Kernel* kernel;
  int64_t tile_tokens;     // T: query tokens of a task
  int64_t tiles_per_list;  // > 1: a list's tokens are cut into this many tiles
  int64_t lists_per_tile;  // > 1: a tile covers the tokens of this many lists
  int64_t tiles;           // of all requests, per KV head
  int64_t key_tile;        // keys per packed piece
  int64_t tiles_per_block;
  int64_t chunk_tiles;    // key tiles per chunk
  int64_t tasks;          // of all requests, per KV head
  int64_t partials;       // likewise
  int64_t packed_blocks;  // x Hkv: blocks of the requests that pack once, in whole words of 64
  int64_t q_row;          // operands per row of Q, padded
  int64_t o_row;          // f32 per row of O, padded
  int64_t score_row;      // f32 per row of scores, padded
  int64_t panel_rows;     // packed rows of q per list, padded
  size_t packed_k_bytes;  // of one key tile
  size_t packed_v_bytes;
  Scratch scratch;
  // Offsets in the workspace, in bytes.
  size_t used;           // uint64 [Hkv x packed_blocks / 64]: blocks that any list holds
  size_t rank;           // int32, likewise: used blocks of the same request and head before the word
  size_t packed;         // [Hkv x slots x tiles_per_block][packed_k_bytes + packed_v_bytes]
  size_t finite;         // uint8 [Hkv x slots x tiles_per_block]: packed V holds only finite values
  size_t partial;        // [Hkv x partials][R][o_row + 3] f32
  size_t workers;        // [workers][scratch.bytes]
  size_t partial_bytes;  // of one (tile, chunk)
  size_t bytes;          // of the whole workspace
};

// The steps of a call for one ISA and dtype, and the numbers of the ISA struct that a plan needs. `base` is the workspace,
// `worker` names a scratch that no other thread uses meanwhile.
struct Kernel {
  // Packs a used block of KV head `head` into the workspace.
  void (*pack)(const Problem&, const Plan&, const Request&, char* base, int64_t head, int64_t block, int worker);
  // Attends tile `tile` (all chunks, and finishes it; or, when the request splits, chunk `chunk` into its partial).
  void (*attend)(const Problem&, const Plan&, const Request&, char* base, int64_t head, int64_t tile, int64_t chunk,
                 int worker);
  // Merges a split tile's partials in order and finishes it.
  void (*merge)(const Problem&, const Plan&, const Request&, char* base, int64_t head, int64_t tile, int worker);
  int lanes;
  int pair;
  int tile_rows;
  int64_t panel_columns;
  size_t (*direct_bytes)(int64_t dim);
};

// Fills the rest of the problem's table of requests too. `whole`: the call does all tasks, not a part of them.
Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers);

// ---- Static, so that files built with ISA flags keep their own copies ----

// The list of query block `list`; its entries are p.ids_entry apart.
static inline const int32_t* ids_of(const Problem& p, const Request& r, int64_t head, int64_t list) {
  return p.ids + r.b * p.ids_request + head * p.ids_head + (r.seq.row + list) * p.ids_list;
}
// Words of 64 blocks that a request's blocks take in `used`, and the first of KV head `head`.
static inline int64_t used_words(const Request& r) { return (r.blocks + 63) / 64; }
static inline int64_t first_word(const Problem& p, const Request& r, int64_t head) {
  return r.first_block / 64 * p.kv_heads + head * used_words(r);
}

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_PLAN_H_
