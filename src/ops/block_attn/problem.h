// A checked block attention call: raw pointers, sizes, strides in elements.
#ifndef TESSERA_OPS_BLOCK_ATTN_PROBLEM_H_
#define TESSERA_OPS_BLOCK_ATTN_PROBLEM_H_

#include <stdint.h>

#include "core/sequences.h"
#include "tessera/tessera.h"
#include "tile/gate.h"

namespace tessera::block_attn {

constexpr int64_t kDefaultBlock = 128;

// Strides of a [request, token, head, feature] tensor; the feature stride is 1. Packed rows have request stride 0.
struct Strides {
  int64_t request;
  int64_t token;
  int64_t head;
};

struct Request;  // plan.h

// A request that another operator has cut out of its own: consecutive rows of request b.
struct Cut {
  Sequence seq;
  int64_t b;
};

struct Problem {
  Sequences sequences;
  const Cut* cuts;        // null, or what the sequences would say: `count` of them
  Request* requests;      // one per sequence, filled when a call is prepared
  int64_t kv_heads;       // Hkv
  int64_t group;          // G = Hq / Hkv
  int64_t dim;            // D
  int64_t dim_v;          // Dv
  int64_t block;          // tokens per KV block
  int64_t block_q;        // query tokens per list; 1 for packed rows
  int64_t width;          // W
  tessera_dtype dtype;    // of k and v
  tessera_dtype q_dtype;  // of q and out: the same, or f32
  bool causal;
  float scale;

  const void* q;  // [B, Sq, Hq, D] or [total_q, Hq, D]
  Strides q_stride;
  KeyView k, v;
  Paging pages;

  const int32_t* ids;  // [B, Hkv, nQ, W] or [Hkv, total_q, W]; head stride 0: one list for all heads
  int64_t ids_request, ids_head, ids_list, ids_entry;

  // Either out (and lse, unless null), or o, l and m; rows as in q.
  void* out;  // [..., Hq, Dv]
  Strides out_stride;
  float* lse;  // [..., Hq]
  Strides lse_stride;
  Gate gate;  // of out
  Strides gate_stride;
  float* o;  // [..., Hq, Dv]
  Strides o_stride;
  float* l;  // [..., Hq]
  float* m;  // [..., Hq]
  Strides l_stride, m_stride;
};

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_PROBLEM_H_
