// A checked call of the indexer: block scores as the maximum over a block's keys, stored or turned into lists at once.
#ifndef TESSERA_OPS_BLOCK_MAX_PROBLEM_H_
#define TESSERA_OPS_BLOCK_MAX_PROBLEM_H_

#include <stdint.h>

#include "core/sequences.h"
#include "ops/select_topk/problem.h"
#include "tessera/tessera.h"

namespace tessera::block_max {

constexpr int64_t kDefaultBlock = 128;

// Strides of a [request, head, row, entry] tensor; packed rows have request stride 0.
struct Strides {
  int64_t request;
  int64_t head;
  int64_t row;
  int64_t entry;
};

// A request with rows, or a run of rows that belong to none: its `seq` has no keys.
struct Request {
  Sequence seq;
  int64_t b;
  int64_t first_tile;  // row tiles of the requests before
};

struct Problem {
  int64_t heads;      // Hi
  int64_t key_heads;  // 1: shared by all heads; else Hi
  int64_t dim;        // D
  int64_t block;      // tokens per block
  bool reduce;        // the maximum over the heads: results have one head
  tessera_dtype dtype;

  const void* q;  // [B, Sq, Hi, D] or [total_q, Hi, D], strides in elements, feature stride 1
  int64_t q_request, q_token, q_head;
  KeyView k;
  Paging pages;
  Sequences sequences;

  bool selects;   // lists by the rule, else scores
  float* scores;  // [B, Hi, Sq, N] or [Hi, total_q, N]
  Strides scores_stride;
  int32_t* ids;  // [B, Hi, Sq, K] or [Hi, total_q, K]
  Strides ids_stride;
  select_topk::Rule rule;

  // What the sequences say, once resolved.
  Request* requests;
  int64_t request_count;
  int64_t blocks;  // N of the scores; for lists, the blocks of the request that has the most
};

// Static, so that files built with ISA flags keep their own copy.

// Blocks that begin before key `end`.
static inline int64_t blocks_before(const Problem& p, int64_t end) {
  return end / p.block + (end % p.block != 0 ? 1 : 0);
}

}  // namespace tessera::block_max

#endif  // TESSERA_OPS_BLOCK_MAX_PROBLEM_H_
