// Who does what, as pure functions: rows by their work, pages of keys by their place.
#ifndef TESSERA_DIST_PARTITION_H_
#define TESSERA_DIST_PARTITION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/sequences.h"
#include "core/status.h"
#include "tessera/parallel.h"

namespace tessera::dist {

// Cuts items into consecutive parts of nearly equal work: part i is [bounds[i], bounds[i + 1]), and each bound is the one
// nearest to its share of the sum, so that no part is more than one item away from it.
void partition(std::span<const int64_t> work, std::span<int64_t> bounds);

// Items [first, first + count) of n that part i of `parts` has, where all items are alike.
tessera_rows even_part(int64_t n, int64_t i, int64_t parts);

Status own_pages(const tessera_own_pages_args& args, int64_t* pages);

// A sum over the pages of all requests that tells whether every one of them is in the table of exactly one rank: the sum of
// the ranks' `own` is then `all`. Each page has a number of its own among 2^64, so other sums agree by accident only.
struct PageSums {
  uint64_t own = 0;
  uint64_t all = 0;

  // The pages that the keys of request b lie in.
  void add(const Paging& pages, int64_t b, int64_t keys);
};

}  // namespace tessera::dist

#endif  // TESSERA_DIST_PARTITION_H_
