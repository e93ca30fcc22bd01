// The token ids of a row's selected blocks: what attention over single tokens takes.
#ifndef TESSERA_OPS_EXPAND_BLOCKS_EXPAND_H_
#define TESSERA_OPS_EXPAND_BLOCKS_EXPAND_H_

#include <cstdint>

namespace tessera::expand_blocks {

// Fills to[0, width), `to_stride` elements apart: the tokens up to `position` of each block in ids[0, count), in the order of
// the ids, then those of the incomplete block that the position lies in, unless an id has named it, then -1. An id that is
// negative or begins after the position gives nothing. block >= 1, width >= count * block + block - 1. `to` may not overlap
// `ids`.
void expand_row(const int32_t* ids, int64_t ids_stride, int64_t count, int64_t position, int64_t block, int32_t* to,
                int64_t to_stride, int64_t width);

}  // namespace tessera::expand_blocks

#endif  // TESSERA_OPS_EXPAND_BLOCKS_EXPAND_H_
