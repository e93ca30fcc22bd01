// Work that every rank does over the keys it has, a piece of the rows at a time:
//     word >  piece   > word + records    > merge   > rows of the results
// A record is what a rank finds for a row. Each rank gets the records of its part of the piece from all others, merges them in
// the order of ranks, and the merged rows are gathered. A piece of few bytes (decode) is given to all ranks in full, which
// merge it each: one exchange instead of two. `>` is an exchange. The first word, and the exchange of a piece while the next
// is computed, are waited for as late as possible.
#ifndef TESSERA_DIST_SHARDS_H_
#define TESSERA_DIST_SHARDS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"
#include "dist/outputs.h"
#include "dist/ranks.h"

namespace tessera::dist {

class ShardedWork {
 public:
  virtual ~ShardedWork() = default;

  // Checks the arguments and fills the rest.
  virtual Status prepare() = 0;
  virtual int64_t first_row(int64_t unit) const = 0;  // for `units`: the number of rows
  // Records of units [first, end).
  virtual Status compute(int64_t first, int64_t end, char* records) = 0;
  // Rows [row, row + count) of the results; records[r] are those of rank r.
  virtual Status merge(int64_t row, int64_t count, std::span<char* const> records) = 0;

  int64_t units = 0;
  int64_t record_bytes = 0;  // a multiple of 4
  int64_t piece_bytes = 0;   // of a piece, at most, as far as this work says
  Word word;
  std::vector<Rows> results;
};

// A failure of any rank is the result of all.
Status share_keys(ShardedWork* work, const Ranks& ranks);

}  // namespace tessera::dist

#endif  // TESSERA_DIST_SHARDS_H_
