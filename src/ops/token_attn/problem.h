// A checked call of attention over token lists.
#ifndef TESSERA_OPS_TOKEN_ATTN_PROBLEM_H_
#define TESSERA_OPS_TOKEN_ATTN_PROBLEM_H_

#include <stdint.h>

#include "core/rows.h"
#include "core/sequences.h"
#include "tessera/tessera.h"
#include "tile/gate.h"

namespace tessera::token_attn {

// A row of queries: its request, that request's first key on the axis of packed keys, the ids below `limit` that it may
// attend to, and how many on its list it does. Dense: these are all of them, in order.
struct Row {
  int64_t key;
  int32_t request, limit;
  int32_t count;
  bool dense;
};

// Rows as in q, then heads and, for some, features.
struct View {
  RowStrides row;
  int64_t head;
  int64_t feature;
};

struct Problem {
  RowForm rows;
  int64_t kv_heads;  // Hkv
  int64_t group;     // G = Hq / Hkv
  int64_t dim;       // D
  int64_t dim_v;     // Dv
  int64_t width;     // W
  tessera_dtype dtype;
  float scale;
  int64_t splits;  // of each list; 0: by its length

  const void* q;
  View q_view;
  KeyView k, v;
  Paging pages;
  int64_t keys;  // that a request can have
  const int32_t* ids;
  RowStrides ids_row;
  int64_t ids_entry;
  RowInts positions;
  Ints cu_k, seq_lens_k;
  bool physical;  // ids are rows of k and v: every one below `keys` counts

  Gate gate;
  View gate_view;
  void* out;
  View out_view;
  float* lse;  // null: not wanted
  View lse_view;

  // Once resolved.
  const Row* table;  // [R]
  int64_t longest;   // the largest `count`
  int64_t runs;      // of dense rows, dense.h
  int64_t densest;   // the largest `limit` of a dense row
};

}  // namespace tessera::token_attn

#endif  // TESSERA_OPS_TOKEN_ATTN_PROBLEM_H_
