// O += P V for values that are used by too few rows to be packed: V is read where its rows lie, row by row, and widened in
// registers. In the packed layout two rows lie element by element, and each takes its own from their words. A step loads
// one vector piece of a value row (of kPair rows) for all rows of P; the piece of 64 bytes that a row of V has in one cache
// line is used up before the next. What is needed next is fetched meanwhile, a few lines at a time, which is what keeps
// memory busy: a burst of prefetches between two multiplications is worth less than none.
//
// Sums run over the rows of V in their order, whatever the number of rows or columns beside.
#ifndef TESSERA_TILE_GATHER_H_
#define TESSERA_TILE_GATHER_H_

#include <stdint.h>

#include "core/packed_layout.h"
#include "tile/panel.h"

namespace tessera {

// What is needed next, in pieces that lie apart. A burst fetches a line of each of a few of them, so that requests go to
// many places of the memory at a time.
template <class Isa>
struct PiecesAhead {
  static constexpr int kTogether = 8;
  static constexpr int64_t kLine = 64;

  struct Pieces {
    const char* const* begin;
    int step;  // every so many of the pointers begin a piece
    int count;
    int64_t bytes;  // of each
    int64_t bursts() const { return (count + kTogether - 1) / kTogether * ((bytes + kLine - 1) / kLine); }
  };
  Pieces pieces[2] = {};
  int now = 0;  // of pieces
  int first = 0;
  int64_t line = 0;

  void burst() {
    if (now == 2) return;
    const Pieces& p = pieces[now];
    const int end = first + kTogether < p.count ? first + kTogether : p.count;
    for (int i = first; i < end; ++i) Isa::prefetch(p.begin[i * p.step] + line);
    line += kLine;
    if (line < p.bytes) return;
    line = 0;
    first = end;
    if (first < p.count) return;
    first = 0;
    ++now;
  }
};

template <class Isa, class In>
struct GatherValues {
  using operand = typename Isa::operand;
  using vec = typename Isa::vec;
  using unit = typename Isa::unit;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kPair = Isa::kPair;
  using Ahead = PiecesAhead<Isa>;

  // What the tiles of one call share.
  struct Call {
    const In* const* values;
    int count;    // rows of V
    bool paired;  // values[i], values[i + 1], i even, lie as a pair of the packed layout; `columns` are whole vectors
    Ahead* ahead;
  };

  // o[rows][columns] += p[rows][count] * values[count][columns]; p is zero from `count` to the next whole pair.
  static void add(const Call& call, int columns, int rows, const operand* const* p, float* const* o) {
    constexpr int kWidth = Isa::kVecs * kLanes;
    const int64_t chances = static_cast<int64_t>(columns + kWidth - 1) / kWidth * ((call.count + kEvery - 1) / kEvery);
    const int64_t wanted = call.ahead->pieces[0].bursts() + call.ahead->pieces[1].bursts();
    const int bursts = static_cast<int>((wanted + chances - 1) / chances);
    for (int column = 0; column < columns; column += kWidth) {
      const int left = columns - column;
      const int vecs = left < kWidth ? (left + kLanes - 1) / kLanes : Isa::kVecs;
      const bool whole = left >= vecs * kLanes;
      const int tiles = (rows + Isa::kRows - 1) / Isa::kRows;
      for (int t = 0; t < tiles; ++t) {
        const int first = t * rows / tiles;
        const int m = (t + 1) * rows / tiles - first;
        const TileFn fn = call.paired ? of_height<true, true>(m, vecs)
                          : whole     ? of_height<true, false>(m, vecs)
                                      : of_height<false, false>(m, vecs);
        fn(call, p + first, o + first, column, left, t == 0 ? bursts : 0);
      }
    }
  }

 private:
  using TileFn = void (*)(const Call&, const operand* const*, float* const*, int, int, int);
  static constexpr int kEvery = 8;  // rows of V from one burst to the next

  // All loops over m and n are unrolled: only then do compilers keep the accumulators in registers throughout.
  template <int kM, int kN, bool kWhole, bool kPaired>
  static void tile(const Call& call, const operand* const* p, float* const* o, int column, int left, int bursts) {
    vec acc[kM][kN];
    const operand* row[kM];
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      row[m] = p[m];
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) acc[m][n] = Isa::load(o[m] + column + n * kLanes);
    }
    const Call& c = call;
    // The bursts stand outside the inner loop, which needs its registers.
    for (int begin = 0; begin < c.count; begin += kEvery) {
      for (int n = 0; n < bursts; ++n) c.ahead->burst();
      const int end = begin + kEvery < c.count ? begin + kEvery : c.count;
      for (int k = begin; k < end; k += kPair) {
        unit u[kN];
#pragma GCC unroll 8
        for (int n = 0; n < kN; ++n) {
          if constexpr (kPaired) {
            u[n] = paired_units(c, k, column + n * kLanes);
          } else {
            u[n] = column_units(c, k, column + n * kLanes, kWhole || n + 1 < kN ? kLanes : left - n * kLanes);
          }
        }
#pragma GCC unroll 8
        for (int m = 0; m < kM; ++m) {
          const auto r = Isa::broadcast_unit(row[m] + k);
#pragma GCC unroll 8
          for (int n = 0; n < kN; ++n) acc[m][n] = Isa::dot(acc[m][n], r, u[n]);
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) Isa::store(o[m] + column + n * kLanes, acc[m][n]);
    }
  }

  // n columns of rows k .. as units.
  static unit column_units(const Call& c, int k, int column, int n) {
    const In* pair[kPair];
    for (int i = 0; i < kPair; ++i) pair[i] = i == 0 || k + i < c.count ? c.values[k + i] + column : nullptr;
    return Isa::column_units(pair, n);
  }

  // The same of pairs. Each row loads its pair anew: to keep it would cost accumulators their registers.
  static unit paired_units(const Call& c, int k, int column) {
    const int slot = k % kPackedElements<In>;
    const auto words = Isa::load_words(c.values[k] - slot + column * kPackedElements<In>);
    return Isa::template unit_of<In>(words, slot / kPair);
  }

  template <int kM, bool kWhole, bool kPaired>
  static TileFn row(int n) {
    if constexpr (Isa::kVecs >= 4) {
      if (n == 4) return tile<kM, 4, kWhole, kPaired>;
      if (n == 3) return tile<kM, 3, kWhole, kPaired>;
    }
    return n == 2 ? tile<kM, 2, kWhole, kPaired> : tile<kM, 1, kWhole, kPaired>;
  }
  template <bool kWhole, bool kPaired>
  static TileFn of_height(int m, int n) {
    static_assert(Isa::kRows <= 6 && (Isa::kVecs == 2 || Isa::kVecs == 4));
    if constexpr (Isa::kRows >= 6) {
      if (m == 6) return row<6, kWhole, kPaired>(n);
      if (m == 5) return row<5, kWhole, kPaired>(n);
    }
    switch (m) {
      case 4: return row<4, kWhole, kPaired>(n);
      case 3: return row<3, kWhole, kPaired>(n);
      case 2: return row<2, kWhole, kPaired>(n);
      default: return row<1, kWhole, kPaired>(n);
    }
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_GATHER_H_
