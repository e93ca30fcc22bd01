// Copies a head's rows of k and v into the slots of their pages.
//
// Rows go to their slots in order, so that of two for one slot the last stays. Consecutive slots of a page are one run,
// and a run is written line by line of the cache: in the packed layout a slot of k has 4 bytes in each of D/e lines (e
// elements to 4 bytes), so up to 16 rows, which fill whole lines of 64 bytes, are turned together, and two neighbouring
// rows of v are interleaved. A row alone, as at decode, touches a line per 4 bytes of k.
//
// A copy takes no instruction that the baseline lacks: there is one variant, and it is bound by memory.
#ifndef TESSERA_OPS_APPEND_KV_KERNEL_H_
#define TESSERA_OPS_APPEND_KV_KERNEL_H_

#include <stdint.h>

#include "ops/append_kv/problem.h"

namespace tessera::append_kv {

// All rows of `head` that go to pages of which the number leaves the remainder `share` by `shares`.
void append(const Problem& problem, int64_t head, int64_t share, int64_t shares);

}  // namespace tessera::append_kv

#endif  // TESSERA_OPS_APPEND_KV_KERNEL_H_
