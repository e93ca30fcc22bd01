// Sums over heads of the positive parts of q . k, weighted: the heads of a row are the rows of the register tile, so their
// dots never leave the registers. Only the sum is stored, a quarter of what tile/gemm.h would store for 4 heads.
#ifndef TESSERA_TILE_HEAD_SUMS_H_
#define TESSERA_TILE_HEAD_SUMS_H_

#include <stdint.h>

#include "tile/gemm.h"

namespace tessera {

template <class Isa>
struct HeadSums {
  using operand = typename Isa::operand;
  using vec = typename Isa::vec;
  using unit = typename Isa::unit;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kPair = Isa::kPair;
  static constexpr int kHeads = 4;  // of a register tile

  struct Panel {
    const operand* data;
    int64_t stride;  // elements from one step to the next
    int steps;
    int vecs;
  };

  struct Row {
    const operand* q;      // of the first head; those of the others follow, `q_row` apart
    const float* weights;  // of the heads; null: 1
    float* sums;
  };

  // sums[column + i] = scale * sum over heads h of weights[h] * max(0, q[h] . key i of the panel), for n rows. Heads are
  // added in their order. One line of what comes next is fetched for each step.
  static void add(const Panel& panel, const Row* rows, int64_t n, int64_t q_row, int64_t heads, float scale, int column,
                  Ahead* ahead) {
    for (int64_t h = 0; h < heads; h += kHeads) {
      const int64_t m = heads - h < kHeads ? heads - h : kHeads;
      const TileFn fn = pick(static_cast<int>(m), panel.vecs);
      const float factor = h + m == heads ? scale : 1.0f;
      for (int64_t r = 0; r < n; ++r) {
        const float* const w = rows[r].weights == nullptr ? nullptr : rows[r].weights + h;
        const char* next = ahead->begin < ahead->end ? ahead->begin : reinterpret_cast<const char*>(panel.data);
        ahead->begin += static_cast<int64_t>(panel.steps) * 64;
        fn(panel, rows[r].q + h * q_row, q_row, w, h == 0, factor, rows[r].sums + column, next);
      }
    }
  }

 private:
  using TileFn = void (*)(const Panel&, const operand*, int64_t, const float*, bool, float, float*, const char*);

  // All loops over m and n are unrolled: only then do compilers keep the accumulators in registers throughout.
  template <int kM, int kN>
  static void tile(const Panel& panel, const operand* q, int64_t q_row, const float* weights, bool first, float scale,
                   float* to, const char* next) {
    vec acc[kM][kN];
    const operand* row[kM];
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      row[m] = q + m * q_row;
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) acc[m][n] = Isa::set1(0.0f);
    }
    const operand* b = panel.data;
    const int64_t stride = panel.stride;
    const int64_t end = static_cast<int64_t>(panel.steps) * kPair;
#pragma GCC unroll 2
    for (int64_t s = 0; s < end; s += kPair) {
      unit u[kN];
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) u[n] = Isa::load_unit(b + n * kLanes * kPair);
      Isa::prefetch(next);
#pragma GCC unroll 8
      for (int m = 0; m < kM; ++m) {
        const auto r = Isa::broadcast_unit(row[m] + s);
#pragma GCC unroll 8
        for (int n = 0; n < kN; ++n) acc[m][n] = Isa::dot(acc[m][n], r, u[n]);
      }
      b += stride;
      next += 64;
    }
    const vec zero = Isa::set1(0.0f);
#pragma GCC unroll 8
    for (int n = 0; n < kN; ++n) {
      vec sum = first ? zero : Isa::load(to + n * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < kM; ++m) {
        const vec x = Isa::max(zero, acc[m][n]);  // NaN where the dot is
        sum = weights == nullptr ? Isa::add(x, sum) : Isa::fma(x, Isa::set1(weights[m]), sum);
      }
      Isa::store(to + n * kLanes, Isa::mul(sum, Isa::set1(scale)));
    }
  }

  template <int kM>
  static TileFn of_width(int n) {
    static_assert(Isa::kVecs == 2 || Isa::kVecs == 4);
    if constexpr (Isa::kVecs == 4) {
      if (n == 4) return tile<kM, 4>;
      if (n == 3) return tile<kM, 3>;
    }
    return n == 2 ? tile<kM, 2> : tile<kM, 1>;
  }
  static TileFn pick(int m, int n) {
    return m == 4 ? of_width<4>(n) : m == 3 ? of_width<3>(n) : m == 2 ? of_width<2>(n) : of_width<1>(n);
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_HEAD_SUMS_H_
