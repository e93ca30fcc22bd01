// O += P V for values that are used by too few rows to be packed: V is read where its rows lie, row by row, and widened in
// registers. A step loads one vector piece of a value row (of kPair rows) for all rows of P; the piece of 64 bytes that a
// row of V has in one cache line is used up before the next. Meanwhile the rows that come next are fetched line by line,
// which is what keeps memory busy: a burst of prefetches between two multiplications is worth less than none.
//
// Sums run over the rows of V in their order, whatever the number of rows or columns beside.
#ifndef TESSERA_TILE_GATHER_H_
#define TESSERA_TILE_GATHER_H_

#include <stdint.h>

#include "tile/panel.h"

namespace tessera {

// Rows that are needed next: of each, lines [0, bytes) are fetched.
struct NextRows {
  const char* const* rows;
  int count;
  int64_t bytes;
};

template <class Isa, class In>
struct GatherValues {
  using operand = typename Isa::operand;
  using vec = typename Isa::vec;
  using unit = typename Isa::unit;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kPair = Isa::kPair;
  static constexpr int64_t kLine = 64;

  // What the tiles of one call share.
  struct Call {
    const In* const* values;
    int count;  // rows of V
    NextRows next[2];
  };

  // o[rows][columns] += p[rows][count] * values[count][columns]; p is zero from `count` to the next whole pair.
  static void add(const Call& call, int columns, int rows, const operand* const* p, float* const* o) {
    constexpr int kWidth = Isa::kVecs * kLanes;
    for (int column = 0; column < columns; column += kWidth) {
      const int left = columns - column;
      const int vecs = left < kWidth ? (left + kLanes - 1) / kLanes : Isa::kVecs;
      const bool whole = left >= vecs * kLanes;
      const int tiles = (rows + Isa::kRows - 1) / Isa::kRows;
      for (int t = 0; t < tiles; ++t) {
        const int first = t * rows / tiles;
        const int m = (t + 1) * rows / tiles - first;
        pick(m, vecs, whole)(call, p + first, o + first, column, left, t == 0);
      }
    }
  }

 private:
  using TileFn = void (*)(const Call&, const operand* const*, float* const*, int, int, bool);

  // All loops over m and n are unrolled: only then do compilers keep the accumulators in registers throughout.
  template <int kM, int kN, bool kWhole>
  static void tile(const Call& call, const operand* const* p, float* const* o, int column, int left, bool fetches) {
    vec acc[kM][kN];
    const operand* row[kM];
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      row[m] = p[m];
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) acc[m][n] = Isa::load(o[m] + column + n * kLanes);
    }
    const int64_t bytes = static_cast<int64_t>(column) * static_cast<int64_t>(sizeof(In));
    const int64_t width = int64_t{kN} * kLanes * static_cast<int64_t>(sizeof(In));
    const Call& c = call;
    for (int k = 0; k < c.count; k += kPair) {
      unit u[kN];
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) {
        const In* pair[kPair];
        for (int i = 0; i < kPair; ++i) {
          pair[i] = i == 0 || k + i < c.count ? c.values[k + i] + column + n * kLanes : nullptr;
        }
        u[n] = Isa::column_units(pair, kWhole || n + 1 < kN ? kLanes : left - n * kLanes);
      }
      if (fetches) fetch(c, k, bytes, width);
#pragma GCC unroll 8
      for (int m = 0; m < kM; ++m) {
        const unit r = Isa::broadcast_unit(row[m] + k);
#pragma GCC unroll 8
        for (int n = 0; n < kN; ++n) acc[m][n] = Isa::dot(acc[m][n], r, u[n]);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) Isa::store(o[m] + column + n * kLanes, acc[m][n]);
    }
  }

  // Of rows k .. of what comes next, the lines that begin in bytes [first, first + width).
  static void fetch(const Call& c, int k, int64_t first, int64_t width) {
    for (const NextRows& next : c.next) {
      const int64_t end = first + width < next.bytes ? first + width : next.bytes;
      for (int64_t line = (first + kLine - 1) / kLine * kLine; line < end; line += kLine) {
        for (int i = k; i < k + kPair && i < next.count; ++i) Isa::prefetch(next.rows[i] + line);
      }
    }
  }

  template <int kM, bool kWhole>
  static TileFn row(int n) {
    if constexpr (Isa::kVecs >= 4) {
      if (n == 4) return tile<kM, 4, kWhole>;
      if (n == 3) return tile<kM, 3, kWhole>;
    }
    return n == 2 ? tile<kM, 2, kWhole> : tile<kM, 1, kWhole>;
  }
  template <bool kWhole>
  static TileFn of_height(int m, int n) {
    static_assert(Isa::kRows <= 6 && (Isa::kVecs == 2 || Isa::kVecs == 4));
    if constexpr (Isa::kRows >= 6) {
      if (m == 6) return row<6, kWhole>(n);
      if (m == 5) return row<5, kWhole>(n);
    }
    return m == 4 ? row<4, kWhole>(n) : m == 3 ? row<3, kWhole>(n) : m == 2 ? row<2, kWhole>(n) : row<1, kWhole>(n);
  }
  static TileFn pick(int m, int n, bool whole) { return whole ? of_height<true>(m, n) : of_height<false>(m, n); }
};

}  // namespace tessera

#endif  // TESSERA_TILE_GATHER_H_
