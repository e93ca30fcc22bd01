// How a checked call is cut into tasks. A function of the problem, the lengths of its lists, the variant and whether this
// call does the whole work; no choice here changes a bit of the result, except through the variant and num_splits.
#ifndef TESSERA_OPS_TOKEN_ATTN_PLAN_H_
#define TESSERA_OPS_TOKEN_ATTN_PLAN_H_

#include <stddef.h>
#include <stdint.h>

#include "ops/token_attn/problem.h"

namespace tessera::token_attn {

struct Kernel;

// Tokens that go through QK, softmax and PV together: their scores for a group stay in L1.
constexpr int kTokenTile = 128;
// Rows of q that do.
constexpr int kGroupRows = 48;
// A list is worked through in chunks of so many tokens, each a state of its own, merged in order. They depend on the list
// alone, so a row has the same bits whether one task does all its chunks or each is a task.
constexpr int64_t kChunkTokens = 512;
// Rows of a task, which share what their lists have in common in the caches.
constexpr int64_t kTaskRows = 8;
// Where there are no more rows than this, each chunk of a row is a task, if there are no more of these either; and each KV
// head of it, if even those are few.
constexpr int64_t kSplitRows = 64;
constexpr int64_t kSplitTasks = 1024;
constexpr int64_t kFewTasks = 32;

// Offsets of one worker's arrays in its scratch, in bytes. H = query heads of a task.
struct Scratch {
  size_t q;       // operand [H][q_row]
  size_t o;       // f32 [H][o_row]
  size_t m;       // f32 [H]
  size_t l;       // f32 [H][lanes]
  size_t max;     // f32 [H][lanes]
  size_t sum_o;   // f32 [H][o_row]: the chunks merged so far
  size_t sum;     // f32 [H][3]: their m, l, max
  size_t scores;  // f32 [kGroupRows][kTokenTile]
  size_t probs;   // operand [kGroupRows][kTokenTile]; aliases scores where an operand is an f32
  size_t packed;  // keys of a token tile
  size_t copied;  // elements [kTokenTile][D + Dv]; only for pages in the packed layout
  size_t bytes;
};

struct Plan {
  const Kernel* kernel;
  int64_t chunks;      // no list has more
  bool split;          // each chunk is a task
  int64_t task_heads;  // KV heads of a task
  int64_t tasks;
  int64_t q_row;           // operands per row of q, padded
  int64_t o_row;           // f32 per row of o, padded
  int64_t partial_floats;  // of one head of q: m, l, max, o
  Scratch scratch;
  // Offsets in the workspace, in bytes.
  size_t cuts;     // block_attn::Cut [runs]
  size_t ids;      // int32 [dense_blocks]
  size_t partial;  // f32 [R][chunks][Hq][partial_floats], where chunks are tasks
  size_t workers;  // [workers][scratch.bytes]
  size_t bytes;
};

// One row's KV heads [head, head_end), and the chunks [chunk, chunk_end) of its list.
struct Task {
  int64_t row;
  int64_t head, head_end;
  int64_t chunk, chunk_end;
};

// The steps of a call for one ISA and dtype, and the numbers of the ISA struct that a plan needs.
struct Kernel {
  // Attends, and finishes the row; or leaves the chunk's states in the workspace.
  void (*attend)(const Problem&, const Plan&, const Task&, char* base, int worker);
  // Merges what chunks left, in order, and finishes the row.
  void (*merge)(const Problem&, const Plan&, const Task&, char* base, int worker);
  int lanes;
  int pair;
};

Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers);

// ---- Static, so that files built with ISA flags keep their own copies ----

// Tokens of a chunk of this row: where splits are asked for, each is cut into chunks that are no longer than others, so
// that no sum becomes less accurate.
static inline int64_t chunk_tokens(const Problem& p, const Row& row) {
  if (p.splits == 0 || row.count == 0) return kChunkTokens;
  const int64_t split = row.count / p.splits + (row.count % p.splits != 0 ? 1 : 0);
  const int64_t chunks = (split + kChunkTokens - 1) / kChunkTokens;
  return (split + chunks - 1) / chunks;
}

}  // namespace tessera::token_attn

#endif  // TESSERA_OPS_TOKEN_ATTN_PLAN_H_
