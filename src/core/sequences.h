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
  const int32_t* table;  // [B, max_pages]; null: not paged
  int64_t request, entry;
  int64_t pages;      // P
  int64_t page_size;  // ps
  bool packed;  // the packed layout: k [P, H, ceil(D/e), ps, e], v [P, H, ceil(ps/e), Dv, e], e elements = 4 bytes
};

enum class KeyForm { kBatch, kPacked, kPaged, kPagedPacked };  // the last: pages in the packed layout

// `s.cu_seqlens_k` or `s.page_table` decides, and for pages, where an operator takes the packed layout, the axes of k.
KeyForm key_form(const tessera_sequences& s, int k_axes = 4);
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
  const int32_t* table = pages.table + b * pages.request;
  int count = 0;
  for (int i = 0; i < n;) {
    const int64_t slot = (begin + i) % pages.page_size;
    const int64_t page = table[(begin + i) / pages.page_size * pages.entry];
    const int64_t left = pages.page_size - slot;
    const int end = left < n - i ? i + static_cast<int>(left) : n;
    if (page < 0 || page >= pages.pages) {
      i = end;
      continue;
    }
    const In* row = data + page * view.page + slot * view.token;
    for (; i < end; ++i, row += view.token) {
      rows[count] = row;
      place[count++] = static_cast<uint8_t>(i);
    }
  }
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
