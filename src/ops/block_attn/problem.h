// A checked block attention call: raw pointers, sizes, strides in elements.
#ifndef TESSERA_OPS_BLOCK_ATTN_PROBLEM_H_
#define TESSERA_OPS_BLOCK_ATTN_PROBLEM_H_

#include <stdint.h>

#include "tessera/tessera.h"

namespace tessera::block_attn {

constexpr int64_t kDefaultBlock = 128;
constexpr int64_t kMaxDim = 8192;  // a row of Q and O in f32 must stay small beside the caches

// Strides of a [request, token, head, feature] tensor; the feature stride is 1.
struct Strides {
  int64_t request;
  int64_t token;
  int64_t head;
};

struct Problem {
  int64_t requests;  // B
  int64_t queries;   // Sq
  int64_t keys;      // Sk
  int64_t kv_heads;  // Hkv
  int64_t group;     // G = Hq / Hkv
  int64_t dim;       // D
  int64_t dim_v;     // Dv
  int64_t block;     // tokens per KV block
  int64_t block_q;   // query tokens per list
  int64_t lists;     // nQ = ceil(Sq / block_q)
  int64_t width;     // W
  int64_t blocks;    // N = ceil(Sk / block)
  tessera_dtype dtype;
  bool causal;
  float scale;

  const void* q;  // [B, Sq, Hq, D]
  const void* k;  // [B, Sk, Hkv, D]
  const void* v;  // [B, Sk, Hkv, Dv]
  Strides q_stride, k_stride, v_stride;

  const int32_t* ids;  // [B, Hkv, nQ, W]; head stride 0: one list for all heads
  int64_t ids_request, ids_head, ids_list, ids_entry;
  const int32_t* q_offset;  // [B], null: Sk - Sq
  int64_t q_offset_request;

  // Either out (and lse, unless null), or o, l and m.
  void* out;  // [B, Sq, Hq, Dv]
  Strides out_stride;
  float* lse;  // [B, Sq, Hq]
  Strides lse_stride;
  float* o;  // [B, Sq, Hq, Dv]
  Strides o_stride;
  float* l;  // [B, Sq, Hq]
  float* m;  // [B, Sq, Hq]
  Strides l_stride, m_stride;
};

// Keys [0, visible_keys(p, b, t)) are visible to query t of request b: every mask of this operator is such a prefix.
// Static, so that files built with ISA flags keep their own copy.
static inline int64_t visible_keys(const Problem& p, int64_t b, int64_t t) {
  if (!p.causal) return p.keys;
  const int64_t offset = p.q_offset == nullptr ? p.keys - p.queries : p.q_offset[b * p.q_offset_request];
  const int64_t end = offset + t + 1;
  return end < 0 ? 0 : end < p.keys ? end : p.keys;
}

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_PROBLEM_H_
