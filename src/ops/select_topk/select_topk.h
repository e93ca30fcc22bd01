// From one f32 score per KV block to the list of the best K.
//
// Preference: the first init_blocks and the local_blocks up to the last query's own; then (if local_blocks >= 1) the
// own blocks of the list's other queries; then the higher score, -0 equal to +0, NaN below every number; then the lower
// id. Each of these tiers is a range of ids, so a list is always whole ranges plus the winners of one: only that range
// is ranked, and only where more blocks are visible than K are scores needed at all.
//
// Cost: scores of the ranked range are copied as integers that order like the preference, std::nth_element finds the
// K-th, one pass writes the ids in ascending order. O(N) time and memory, 10 ms for N = 1M.
#ifndef TESSERA_OPS_SELECT_TOPK_SELECT_TOPK_H_
#define TESSERA_OPS_SELECT_TOPK_SELECT_TOPK_H_

#include <stdint.h>

#include "ops/select_topk/problem.h"

namespace tessera::select_topk {

// A list is [0, init), the best `winners` of [begin, end), and [end, visible).
struct Ranges {
  int64_t init;
  int64_t begin;
  int64_t end;
  int64_t visible;
  int64_t winners;

  bool needs_scores() const { return winners > 0 && winners < end - begin; }
};
// Of the list of queries at positions [first, last] among `keys` keys.
Ranges ranges(const Rule& rule, int64_t first, int64_t last, int64_t keys);

// Writes the list's K ids, ascending, then -1, `stride` apart. scores: f32 [N], of which [begin, end) is read if
// needs_scores(). scratch: uint32 [N].
void write_ids(const Rule& rule, const Ranges& ranges, const float* scores, uint32_t* scratch, int32_t* ids,
               int64_t stride);

// ---- The requests and lists of a Problem ----

// For Prepared.
inline int64_t table_entries(const Problem& p) { return p.sequences.count; }
void resolve(Sequence* table, Problem* p);

Ranges ranges(const Problem& p, int64_t b, int64_t list);
// Of lists [first, end).
bool any_needs_scores(const Problem& p, int64_t b, int64_t first, int64_t end);
// Blocks that a list of request b sees while needing scores; 0: none does.
int64_t scored_blocks(const Problem& p, int64_t b);
void write_ids(const Problem& p, int64_t b, int64_t head, int64_t list, const float* scores, uint32_t* scratch);

}  // namespace tessera::select_topk

#endif  // TESSERA_OPS_SELECT_TOPK_SELECT_TOPK_H_
