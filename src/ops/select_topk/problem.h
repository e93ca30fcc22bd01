// What the selectors have in common: the rule, and a checked call that ranks KV blocks for every query block and KV head.
#ifndef TESSERA_OPS_SELECT_TOPK_PROBLEM_H_
#define TESSERA_OPS_SELECT_TOPK_PROBLEM_H_

#include <stdint.h>

#include "core/sequences.h"
#include "tessera/tessera.h"

namespace tessera::select_topk {

struct Rule {
  int64_t topk;          // K
  int64_t block;         // tokens per block
  int64_t local_blocks;  // up to and including the list's last query's own, always in
  int64_t init_blocks;   // always in
};

struct Problem {
  int64_t requests;  // B
  int64_t queries;   // Sq
  int64_t kv_heads;  // Hkv
  int64_t group;     // G = Hq / Hkv
  int64_t dim;       // D
  int64_t block_q;   // query tokens per list
  int64_t lists;     // nQ = ceil(Sq / block_q)
  Rule rule;
  tessera_dtype dtype;

  const void* q;  // [B, Sq, Hq, D], strides in elements, feature stride 1
  int64_t q_request, q_token, q_head;
  KeyView k;
  Paging pages;
  Sequences sequences;
  int32_t* ids;  // [B, Hkv, nQ, K]
  int64_t ids_request, ids_head, ids_list, ids_entry;

  // What the sequences say, once resolved.
  const Sequence* table;  // [B]
  int64_t keys;           // the most that a request has
  int64_t blocks;         // N = ceil(keys / block)
};

// Static, so that files built with ISA flags keep their own copies.

// Query tokens [list_begin, list_end) share list `list`.
static inline int64_t list_begin(const Problem& p, int64_t list) { return list * p.block_q; }
static inline int64_t list_end(const Problem& p, int64_t list) {
  const int64_t begin = list_begin(p, list);
  return p.queries - begin < p.block_q ? p.queries : begin + p.block_q;
}
// Position of query t among the keys; may be negative or past the last key.
static inline int64_t position(const Problem& p, int64_t b, int64_t t) { return p.table[b].offset + t; }
// Keys [0, visible_keys) are visible to query t.
static inline int64_t visible_keys(const Problem& p, int64_t b, int64_t t) { return visible_keys(p.table[b], true, t); }
// Where the run of keys that lie in one page, or all in none, ends; and whether those from `key` to there exist.
struct KeyRun {
  int64_t end;
  bool exists;
};
static inline KeyRun key_run(const Problem& p, int64_t b, int64_t key) {
  if (p.pages.table == nullptr) return {p.table[b].keys, true};
  const PageRun run = page_run(p.pages, b, key);
  return {key + run.keys, run.page >= 0};
}
// The first key of request b that exists; its number of keys, or more, if none does.
static inline int64_t first_key(const Problem& p, int64_t b) {
  int64_t key = 0;
  while (key < p.table[b].keys) {
    const KeyRun run = key_run(p, b, key);
    if (run.exists) return key;
    key = run.end;
  }
  return key;
}
// Keys of request b in [begin, end) that exist.
static inline int64_t count_keys(const Problem& p, int64_t b, int64_t begin, int64_t end) {
  int64_t count = 0;
  while (begin < end) {
    const KeyRun run = key_run(p, b, begin);
    const int64_t stop = run.end < end ? run.end : end;
    count += run.exists ? stop - begin : 0;
    begin = stop;
  }
  return count;
}

}  // namespace tessera::select_topk

#endif  // TESSERA_OPS_SELECT_TOPK_PROBLEM_H_
