// The best k of rows of scores. One pass: tile/best.h says what it costs. Bound by the speed of reading the scores as
// soon as a row is much longer than k.
#ifndef TESSERA_OPS_TOPK_BLOCKS_KERNEL_H_
#define TESSERA_OPS_TOPK_BLOCKS_KERNEL_H_

#include <math.h>

#include "ops/topk_blocks/plan.h"
#include "tile/best.h"

namespace tessera::topk_blocks {

template <class Isa>
struct TopkBlocks {
  static constexpr int kLanes = Isa::kLanes;

  // -inf is a block that a row does not see.
  static Best<Isa> list_at(const Problem& p, const Plan& plan, char* data) {
    return {p.topk, plan.capacity, -INFINITY, data};
  }

  static void collect(const Problem& p, const Plan& plan, int64_t row, int64_t begin, int64_t end, char* data) {
    const Best<Isa> list = list_at(p, plan, data);
    const int64_t stride = p.scores.stride[p.scores.ndim - 1];
    const float* from = static_cast<const float*>(p.scores.data) + row_offset(p.scores, row);
    float copy[kRun + kLanes];
    list.clear();
    for (int64_t i = begin; i < end; i += kRun) {
      const int n = end - i < kRun ? static_cast<int>(end - i) : kRun;
      // Whole vectors are read.
      const bool in_place = stride == 1 && n % kLanes == 0;
      for (int j = 0; !in_place && j < n; ++j) copy[j] = from[(i + j) * stride];
      list.add(in_place ? from + i : copy, 0, n, i);
    }
    list.reduce();
  }

  static void write(const Problem& p, const Plan& plan, int64_t row, char* lists, char* merged) {
    Best<Isa> best = list_at(p, plan, lists);
    if (plan.chunks > 1) {
      best = list_at(p, plan, merged);
      best.clear();
      for (int64_t c = 0; c < plan.chunks; ++c) {
        best.merge(list_at(p, plan, lists + c * plan.list_bytes));
      }
      best.reduce();
    }
    const int64_t stride = p.indices.stride[p.indices.ndim - 1];
    int32_t* const to = static_cast<int32_t*>(p.indices.data) + row_offset(p.indices, row);
    for (int64_t i = 0; i < p.topk; ++i) to[i * stride] = i < best.head()->count ? best.ids()[i] : -1;
  }

  static constexpr Kernel kernel() { return {collect, write, kLanes}; }
};

}  // namespace tessera::topk_blocks

#endif  // TESSERA_OPS_TOPK_BLOCKS_KERNEL_H_
