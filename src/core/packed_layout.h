// The packed layout of a paged cache: what a dot product takes at once lies together. With e elements to 4 bytes,
//   k [P, H, ceil(D/e), ps, e]    feature d of the key in slot j is k[page, head, d / e, j, d % e]
//   v [P, H, ceil(ps/e), Dv, e]   feature d of the value in slot j is v[page, head, j / e, d, j % e]
// Where a kernel cannot read such pages as panels, it copies the keys it needs to rows.
#ifndef TESSERA_CORE_PACKED_LAYOUT_H_
#define TESSERA_CORE_PACKED_LAYOUT_H_

#include <stdint.h>
#include <string.h>

#include "core/sequences.h"
#include "tessera/tessera.h"

namespace tessera {

class Checker;

// Of tensors that have five axes: those behind the heads, and that the last two are dense. `dim_text`: "D of q".
void check_packed_keys(const char* name, const tessera_tensor& k, int64_t dim, const char* dim_text, Checker* c);
void check_packed_values(const char* name, const tessera_tensor& v, int64_t page_size, const char* page_size_text,
                         Checker* c);

// ---- For kernels. Static, so that files built with ISA flags keep their own copies. ----

template <class In>
constexpr int kPackedElements = static_cast<int>(4 / sizeof(In));  // e

// The features of `keys` neighbouring slots to rows; those of a slot are `token` apart, 4 bytes at a time.
template <class In>
static inline void copy_key_units(const In* from, int64_t token, int keys, int64_t dim, In* to, int64_t step) {
  constexpr int kE = kPackedElements<In>;
  int64_t d = 0;
  for (; d + kE <= dim; d += kE, from += token) {
    for (int key = 0; key < keys; ++key) memcpy(to + key * step + d, from + key * kE, kE * sizeof(In));
  }
  for (int key = 0; d < dim && key < keys; ++key) to[key * step + d] = from[key * kE];
}

// Copies those of keys [begin, begin + n) of request b that exist to rows, `step` elements apart. Returns how many there
// are; rows and places as in locate_keys().
template <class In>
static inline int copy_packed_keys(const KeyView& k, const Paging& pages, int64_t b, int64_t head, int64_t begin, int n,
                                   int64_t dim, In* to, int64_t step, const In** rows, uint8_t* place) {
  constexpr int kE = kPackedElements<In>;
  constexpr int kKeys = 16;  // whose units fill a cache line
  const In* const data = static_cast<const In*>(k.data) + head * k.head;
  int count = 0;
  for_each_run(pages, b, begin, n, [&](const PageRun& run, int first, int m) {
    const In* const page = data + run.page * k.page + run.slot * kE;
    for (int i = 0; i < m; i += kKeys) {
      In* const row = to + count * step;
      const int keys = m - i < kKeys ? m - i : kKeys;
      copy_key_units(page + i * kE, k.token, keys, dim, row, step);
      for (int key = 0; key < keys; ++key) {
        rows[count] = row + key * step;
        place[count++] = static_cast<uint8_t>(first + i + key);
      }
    }
  });
  return count;
}

// The same of values.
template <class In>
static inline int copy_packed_values(const KeyView& v, const Paging& pages, int64_t b, int64_t head, int64_t begin,
                                     int n, int64_t dim, In* to, int64_t step, const In** rows) {
  constexpr int kE = kPackedElements<In>;
  const In* const data = static_cast<const In*>(v.data) + head * v.head;
  int count = 0;
  for_each_run(pages, b, begin, n, [&](const PageRun& run, int, int m) {
    const In* const page = data + run.page * v.page;
    for (int64_t slot = run.slot; slot < run.slot + m; ++slot) {
      In* const row = to + count * step;
      const In* const from = page + slot / kE * v.token + slot % kE;
      for (int64_t d = 0; d < dim; ++d) row[d] = from[d * kE];
      rows[count++] = row;
    }
  });
  return count;
}

}  // namespace tessera

#endif  // TESSERA_CORE_PACKED_LAYOUT_H_
