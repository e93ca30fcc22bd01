// The one multiplication of all kernels: C[rows][columns] (+)= A[rows][steps] * panel[steps][columns], f32 accumulation.
//
// A is read in place, a broadcast unit per row and step, so it needs no packing; a step loads the panel's vectors once for
// all rows. Every C element sums its steps in increasing order whatever the number of rows or columns beside it: a row's
// bits do not depend on its neighbours. Rows are cut into tiles of nearly equal height, at most Isa::kRows: one row left
// over would run at the latency of its own additions, a third of the speed.
#ifndef TESSERA_TILE_GEMM_H_
#define TESSERA_TILE_GEMM_H_

#include <stddef.h>
#include <stdint.h>

#include "tile/panel.h"

namespace tessera {

// Memory that is read soon: each row tile prefetches the next lines of it, one per step.
struct Ahead {
  const char* begin;
  const char* end;
};

template <class Isa>
struct Gemm {
  using operand = typename Isa::operand;
  using vec = typename Isa::vec;
  using unit = typename Isa::unit;
  using P = Panels<Isa>;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kPair = Isa::kPair;

  // What the tiles of one call share.
  struct Panel {
    const operand* data;  // [steps][stride]
    int64_t stride;       // elements from one step to the next
    int steps;
    bool accumulate;   // add to C, else overwrite it
    const char* next;  // read soon: each row tile prefetches one 64-byte line of it per step
  };

  // All loops over m and n are unrolled: only then do compilers keep the accumulators in registers throughout.
  template <int kM, int kN>
  static void tile(const Panel& panel, const operand* const* a, float* const* c, int64_t column) {
    vec acc[kM][kN];
    const operand* row[kM];
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      row[m] = a[m];
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) {
        acc[m][n] = panel.accumulate ? Isa::load(c[m] + column + n * kLanes) : Isa::set1(0.0f);
      }
    }
    const operand* b = panel.data;
    const int64_t stride = panel.stride;
    const char* next = panel.next;
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
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) Isa::store(c[m] + column + n * kLanes, acc[m][n]);
    }
  }

  using TileFn = void (*)(const Panel&, const operand* const*, float* const*, int64_t);

  template <int kM>
  static void row(TileFn* fns) {
    fns[0] = tile<kM, 1>;
    if constexpr (Isa::kVecs >= 2) fns[1] = tile<kM, 2>;
    if constexpr (Isa::kVecs >= 4) {
      fns[2] = tile<kM, 3>;
      fns[3] = tile<kM, 4>;
    }
  }

  // The tile of m rows and n vectors.
  static TileFn pick(int m, int n) {
    static_assert(Isa::kRows <= 6 && (Isa::kVecs <= 2 || Isa::kVecs == 4));
    TileFn fns[4];
    switch (m) {
      case 1: row<1>(fns); break;
      case 2: row<2>(fns); break;
      case 3: row<3>(fns); break;
      case 4: row<4>(fns); break;
      default:
        if constexpr (Isa::kRows >= 6) {
          if (m == 5) row<5>(fns);
          if (m == 6) row<6>(fns);
        }
    }
    return fns[n - 1];
  }

  // C columns [column, column + n * kLanes) of `rows` rows.
  static void rows(Panel panel, int rows, const operand* const* a, float* const* c, int64_t column, int n,
                   Ahead* ahead) {
    const int tiles = (rows + Isa::kRows - 1) / Isa::kRows;
    const int low = rows / tiles;
    const TileFn fns[2] = {pick(low, n), low < Isa::kRows ? pick(low + 1, n) : nullptr};
    int first = 0;
    for (int t = 0; t < tiles; ++t) {
      const int end = (t + 1) * rows / tiles;
      // The first few tiles fetch what comes next; the rest touch lines that are at hand.
      panel.next = ahead->begin < ahead->end ? ahead->begin : reinterpret_cast<const char*>(panel.data);
      ahead->begin += static_cast<int64_t>(panel.steps) * 64;
      fns[end - first - low](panel, a + first, c + first, column);
      first = end;
    }
  }

  // C[rows][first `columns` vectors of the packed matrix], all panels; `width` vectors were packed with `packed_steps`
  // steps, of which the first `steps` count. `next` is what the caller reads after this.
  static void all(const operand* packed, int width, int packed_steps, int steps, int columns, bool accumulate,
                  int rows_n, const operand* const* a, float* const* c, const void* next) {
    for (int p = 0; p < P::count(width); ++p) {
      const int first = P::begin(width, p);
      if (first >= columns) break;
      const int end = P::begin(width, p + 1);
      const void* after = end >= columns ? next : P::at(packed, packed_steps, end);
      Ahead ahead = panel_at(after, end - first, steps);
      one(P::at(packed, packed_steps, first), static_cast<int64_t>(end - first) * kLanes * kPair, steps,
          (end < columns ? end : columns) - first, accumulate, rows_n, a, c, static_cast<int64_t>(first) * kLanes,
          &ahead);
    }
  }

  // The first `columns` vectors of one panel whose steps are `stride` elements apart; they are C's from `column` on.
  static void one(const operand* panel, int64_t stride, int steps, int columns, bool accumulate, int rows_n,
                  const operand* const* a, float* const* c, int64_t column, Ahead* ahead) {
    rows({panel, stride, steps, accumulate, nullptr}, rows_n, a, c, column, columns, ahead);
  }

  static Ahead panel_at(const void* data, int width, int steps) {
    const char* begin = static_cast<const char*>(data);
    return {begin, begin + static_cast<int64_t>(width) * kLanes * steps * 4};
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_GEMM_H_
