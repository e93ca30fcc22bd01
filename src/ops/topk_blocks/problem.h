// Rows of scores to select from: checked.
#ifndef TESSERA_OPS_TOPK_BLOCKS_PROBLEM_H_
#define TESSERA_OPS_TOPK_BLOCKS_PROBLEM_H_

#include <stdint.h>

#include "tessera/tessera.h"

namespace tessera::topk_blocks {

struct Problem {
  tessera_tensor scores;   // [..., N]
  tessera_tensor indices;  // [..., k]
  int64_t rows;            // product of [...]
  int64_t entries;         // N
  int64_t topk;            // k
  tessera_dtype dtype;     // f32
};

// Static, so that files built with ISA flags keep their own copy.

// Where row `row`, of the axes before the last in row-major order, begins in t.
static inline int64_t row_offset(const tessera_tensor& t, int64_t row) {
  int64_t offset = 0;
  for (int axis = t.ndim - 2; axis >= 0; --axis) {
    offset += row % t.shape[axis] * t.stride[axis];
    row /= t.shape[axis];
  }
  return offset;
}

}  // namespace tessera::topk_blocks

#endif  // TESSERA_OPS_TOPK_BLOCKS_PROBLEM_H_
