// What the selectors have in common: a checked call that ranks KV blocks for every query block and KV head.
#ifndef TESSERA_OPS_SELECT_TOPK_PROBLEM_H_
#define TESSERA_OPS_SELECT_TOPK_PROBLEM_H_

#include <stdint.h>

#include "tessera/tessera.h"

namespace tessera::select_topk {

constexpr int64_t kMaxDim = 8192;  // a row of q in f32 must stay small beside the caches

struct Problem {
  int64_t requests;  // B
  int64_t queries;   // Sq
  int64_t keys;      // Sk
  int64_t kv_heads;  // Hkv
  int64_t group;     // G = Hq / Hkv
  int64_t dim;       // D
  int64_t block;     // tokens per KV block
  int64_t block_q;   // query tokens per list
  int64_t lists;     // nQ = ceil(Sq / block_q)
  int64_t blocks;    // N = ceil(Sk / block)
  int64_t topk;      // K
  int64_t local_blocks;
  int64_t init_blocks;
  tessera_dtype dtype;

  const void* q;  // [B, Sq, Hq, D], strides in elements, feature stride 1
  int64_t q_request, q_token, q_head;
  const void* k;  // [B, Sk, Hkv, D]
  int64_t k_request, k_token, k_head;
  const int32_t* q_offset;  // [B], null: Sk - Sq
  int64_t q_offset_request;
  int32_t* ids;  // [B, Hkv, nQ, K]
  int64_t ids_request, ids_head, ids_list, ids_entry;
};

// Static, so that files built with ISA flags keep their own copies.

// Query tokens [list_begin, list_end) share list `list`.
static inline int64_t list_begin(const Problem& p, int64_t list) { return list * p.block_q; }
static inline int64_t list_end(const Problem& p, int64_t list) {
  const int64_t begin = list_begin(p, list);
  return p.queries - begin < p.block_q ? p.queries : begin + p.block_q;
}
// Position of query t among the keys; may be negative or past the last key.
static inline int64_t position(const Problem& p, int64_t b, int64_t t) {
  return t + (p.q_offset == nullptr ? p.keys - p.queries : p.q_offset[b * p.q_offset_request]);
}
// Keys [0, visible_keys) are visible to query t.
static inline int64_t visible_keys(const Problem& p, int64_t b, int64_t t) {
  const int64_t end = position(p, b, t) + 1;
  return end < 0 ? 0 : end < p.keys ? end : p.keys;
}

}  // namespace tessera::select_topk

#endif  // TESSERA_OPS_SELECT_TOPK_PROBLEM_H_
