// Lists of blocks and the positions of their rows: checked.
#ifndef TESSERA_OPS_EXPAND_BLOCKS_PROBLEM_H_
#define TESSERA_OPS_EXPAND_BLOCKS_PROBLEM_H_

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera::expand_blocks {

struct Problem {
  tessera_tensor ids;        // [..., K]
  tessera_tensor positions;  // [...], the axes of ids without its last
  tessera_tensor tokens;     // [..., width]
  int64_t rows;              // product of [...]
  int64_t count;             // K
  int64_t block;             // bs
  int64_t width;             // K * bs + bs - 1
};

}  // namespace tessera::expand_blocks

#endif  // TESSERA_OPS_EXPAND_BLOCKS_PROBLEM_H_
