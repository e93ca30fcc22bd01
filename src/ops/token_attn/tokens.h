// From the ids on a row's list to where the tokens lie. Consecutive ids, of which a list of blocks is made, need no second
// look into the page table: only where a page ends, or an id does not follow the last one, is a token looked up.
#ifndef TESSERA_OPS_TOKEN_ATTN_TOKENS_H_
#define TESSERA_OPS_TOKEN_ATTN_TOKENS_H_

#include <stdint.h>

#include "core/packed_layout.h"
#include "ops/token_attn/problem.h"

namespace tessera::token_attn {

// ---- Static, so that files built with ISA flags keep their own copies ----

static inline bool paged(const Problem& p) { return p.pages.table != nullptr || p.pages.packed; }

// Walks the ids of a row that count, in the order of the list.
struct TokenCursor {
  const Problem& p;
  const Row& row;
  const int32_t* ids;
  int64_t entry = 0;  // of the list, that is next
  int64_t id = -2;    // last one looked at; where it and the next `run` ids lie, if anywhere
  int64_t run = 0;
  int64_t page = 0;  // -1: nowhere
  int64_t slot = 0;  // or token
};

static inline TokenCursor tokens_of(const Problem& p, int64_t r) {
  return {p, p.table[r], p.ids + row_offset(p.rows, p.ids_row, r)};
}

// Goes to the next id that counts; false: there is none.
static inline bool advance(TokenCursor* c) {
  const Problem& p = c->p;
  for (; c->entry < p.width; ++c->entry) {
    const int64_t id = c->ids[c->entry * p.ids_entry];
    if (id < 0 || id >= c->row.limit) continue;
    if (id == c->id + 1 && c->run > 0) {
      --c->run;
      ++c->slot;
    } else if (!paged(p)) {
      c->page = 0;
      c->slot = c->row.key + id;
      c->run = INT64_MAX;
    } else {
      const PageRun run = page_run(p.pages, c->row.request, id);
      c->page = run.page;
      c->slot = run.slot;
      c->run = run.keys - 1;
    }
    c->id = id;
    if (c->page < 0) continue;
    ++c->entry;
    return true;
  }
  return false;
}

// Where the cursor's token lies in k or v, for head 0: its first feature.
template <class In>
static inline int64_t key_at(const TokenCursor& c) {
  const KeyView& k = c.p.k;
  if (c.p.pages.packed) return c.page * k.page + c.slot * kPackedElements<In>;
  return c.row.request * k.request + c.page * k.page + c.slot * k.token;
}
template <class In>
static inline int64_t value_at(const TokenCursor& c) {
  constexpr int kE = kPackedElements<In>;
  const KeyView& v = c.p.v;
  if (c.p.pages.packed) return c.page * v.page + c.slot / kE * v.token + c.slot % kE;
  return c.row.request * v.request + c.page * v.page + c.slot * v.token;
}

static inline int64_t count_tokens(const Problem& p, int64_t r) {
  TokenCursor cursor = tokens_of(p, r);
  int64_t count = 0;
  while (advance(&cursor)) ++count;
  return count;
}

}  // namespace tessera::token_attn

#endif  // TESSERA_OPS_TOKEN_ATTN_TOKENS_H_
