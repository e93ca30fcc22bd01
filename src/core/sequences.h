// Which query rows meet which keys, and where in memory the keys lie: the three forms in which callers hand them over.
//   batch    q [B, Sq, ...], k [B, Sk, H, D]: every request has Sq rows and Sk keys
//   packed   rows, or keys, of all requests one after the other; cu_seqlens say where each begins
//   paged    k [P, H, ps, D]: key j of request b is slot j % ps of page page_table[b][j / ps], and seqused_k[b] keys count
// Everything is resolved here, before any kernel: a kernel is handed pointers to the key rows that exist.
#ifndef TESSERA_CORE_SEQUENCES_H_
#define TESSERA_CORE_SEQUENCES_H_

#include <stdint.h>

#include "tessera/tessera.h"

namespace tessera {

class Checker;

// One request. Query t of it is row `row` + t, at position `offset` + t among keys [0, keys).
struct Sequence {
  int64_t row;  // 0 in a batch, whose tensors have an axis for the request
  int64_t rows;
  int64_t key;  // likewise
  int64_t keys;
  int64_t offset;
};

// A strided int32 axis.
struct Ints {
  const int32_t* data;  // null: not given
  int64_t stride;
  int32_t operator[](int64_t i) const { return data[i * stride]; }
};

struct Sequences {
  int64_t count;     // B
  bool packed_q;     // the rows of all requests lie on one axis
  int64_t rows;      // of that axis; else Sq
  int64_t seqlen_q;  // rows of each request where cu_q is not given
  int64_t keys;      // total_k, Sk, or the slots of a row of the page table
  Ints cu_q, cu_k, used_k, q_offset;
};

// Rows of k or v. Strides count elements.
struct KeyView {
  const void* data;
  int64_t request;  // batch
  int64_t page;     // paged
  int64_t token;    // packed layout: the third axis
  int64_t head;
};

struct Paging {
  const int32_t* table;  // [B, max_pages]; null: not paged, or pages that follow each other
  int64_t request, entry;
  int64_t pages;      // P
  int64_t page_size;  // ps
  bool packed;        // in the packed layout, core/packed_layout.h
  int64_t span;       // pages in a row that an entry of the table names: pages [e span, (e + 1) span) for an entry e
};

enum class KeyForm { kBatch, kPacked, kPaged, kPagedPacked };  // the last: pages in the packed layout

// `s.cu_seqlens_k` or `s.page_table` decides, and for pages the number of axes of k.
KeyForm key_form(const tessera_sequences& s, int k_axes);
bool is_paged(KeyForm form);
// How messages write the axes of k and v.
const char* key_axes(KeyForm form);
const char* value_axes(KeyForm form);
int key_rank(KeyForm form);
int key_heads_axis(KeyForm form);
KeyView key_view(KeyForm form, const tessera_tensor& k);
Paging paging(KeyForm form, const tessera_tensor& k, const tessera_sequences& s);

// Checks `s` against q ([B, Sq, ...] or, packed, [total_q, ...]) and k, which have passed their own checks.
Sequences check_sequences(const tessera_tensor& q, bool packed_q, const tessera_tensor& k, const tessera_sequences& s,
                          Checker* c);

// Fills table[0, count). Lengths that the tensors cannot hold are cut to what they hold, negative ones are 0. A request
// whose rows lie outside q or start before an earlier request's end is empty, so no row belongs to two requests.
void resolve(const Sequences& s, Sequence* table);
// One of them; called for b = 0, 1, ... with *taken = 0 before the first.
Sequence resolve(const Sequences& s, int64_t b, int64_t* taken);

// ---- For kernels. Static, so that files built with ISA flags keep their own copies. ----

// Keys [0, visible_keys(s, causal, t)) are visible to query t: every mask is such a prefix.
static inline int64_t visible_keys(const Sequence& s, bool causal, int64_t t) {
  if (!causal) return s.keys;
  const int64_t end = s.offset + t + 1;
  return end < 0 ? 0 : end < s.keys ? end : s.keys;
}

// Where a key lies, and how many keys from it on lie in the same page; page -1: it names none.
struct PageRun {
  int64_t page, slot, keys;
};
static inline PageRun page_run(const Paging& pages, int64_t b, int64_t key) {
  const int64_t index = key / pages.page_size;
  const int64_t slot = key - index * pages.page_size;
  const int64_t place = pages.span == 1 ? index : index / pages.span;
  const int64_t entry = pages.table == nullptr ? place : pages.table[b * pages.request + place * pages.entry];
  const int64_t page = entry * pages.span + index - place * pages.span;
  return {entry >= 0 && page < pages.pages ? page : -1, slot, pages.page_size - slot};
}

// Calls use(run, i, m) for the keys [begin, begin + n) of request b that exist: those from begin + i on are the m that
// begin `run`.
template <class Use>
static inline void for_each_run(const Paging& pages, int64_t b, int64_t begin, int n, const Use& use) {
  for (int i = 0; i < n;) {
    const PageRun run = page_run(pages, b, begin + i);
    const int m = run.keys < n - i ? static_cast<int>(run.keys) : n - i;
    if (run.page >= 0) use(run, i, m);
    i += m;
  }
}

// Pointers to the rows of keys [begin, begin + n) of request b in `rows`, and each one's distance from `begin` in
// `place`; keys behind an invalid page are left out. Returns how many there are.
template <class In>
static inline int locate_keys(const KeyView& view, const Paging& pages, const Sequence& s, int64_t b, int64_t head,
                              int64_t begin, int n, const In** rows, uint8_t* place) {
  const In* data = static_cast<const In*>(view.data) + head * view.head;
  if (pages.table == nullptr) {
    data += b * view.request + (s.key + begin) * view.token;
    for (int i = 0; i < n; ++i) {
      rows[i] = data + i * view.token;
      place[i] = static_cast<uint8_t>(i);
    }
    return n;
  }
  int count = 0;
  for_each_run(pages, b, begin, n, [&](const PageRun& run, int first, int m) {
    const In* row = data + run.page * view.page + run.slot * view.token;
    for (int i = 0; i < m; ++i, row += view.token) {
      rows[count] = row;
      place[count++] = static_cast<uint8_t>(first + i);
    }
  });
  return count;
}

// How many of the n places, which ascend, lie before `end`.
static inline int places_before(const uint8_t* place, int n, int64_t end) {
  if (end <= 0 || n == 0) return 0;
  if (end > place[n - 1]) return n;
  int count = static_cast<int>(end < n ? end : n);
  while (count > 0 && place[count - 1] >= end) --count;
  return count;
}

}  // namespace tessera

#endif  // TESSERA_CORE_SEQUENCES_H_
