// Packed panels: the one format in which the micro-kernel reads K^T and V.
//
// A panel covers up to Isa::kVecs vectors of columns; for each step of the contraction it holds one 32-bit unit per
// column, [steps][columns], and a unit is one f32 or a pair of bf16 that are neighbours along the contraction. For K the
// columns are keys and the contraction runs over D, so packing transposes; for V the columns are features and the
// contraction runs over keys. `vecs` vectors are cut into ceil(vecs / kVecs) panels of nearly equal width (5 vectors make
// 3 + 2, not 4 + 1: a one-vector panel would leave the multipliers waiting for their own results).
// Columns and steps past the data are zero.
#ifndef TESSERA_TILE_PANEL_H_
#define TESSERA_TILE_PANEL_H_

#include <stddef.h>
#include <stdint.h>

#include "core/packed_layout.h"

namespace tessera {

template <class A, class B>
constexpr bool kSameType = false;
template <class A>
constexpr bool kSameType<A, A> = true;

template <class Isa>
struct Panels {
  using operand = typename Isa::operand;
  using unit = typename Isa::unit;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kPair = Isa::kPair;

  static int vecs(int64_t columns) { return static_cast<int>((columns + kLanes - 1) / kLanes); }
  static int steps(int64_t depth) { return static_cast<int>((depth + kPair - 1) / kPair); }
  static int count(int vecs) { return (vecs + Isa::kVecs - 1) / Isa::kVecs; }
  // First vector of panel p; panel p ends where p + 1 begins.
  static int begin(int vecs, int p) { return static_cast<int>(static_cast<int64_t>(p) * vecs / count(vecs)); }
  static operand* at(operand* packed, int steps, int first_vec) {
    return packed + static_cast<int64_t>(first_vec) * kLanes * steps * kPair;
  }
  static const operand* at(const operand* packed, int steps, int first_vec) {
    return packed + static_cast<int64_t>(first_vec) * kLanes * steps * kPair;
  }

  // A vector of keys, of which n exist, by as many steps: `left` features from `first` on. Steps are `width` vectors apart
  // in the panel. kWhole: nothing is missing, and compilers then drop every question.
  template <bool kWhole, class In>
  static void pack_square(const In* const* rows, int n, int first, int left, operand* to, int64_t width) {
    unit r[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      const bool exists = kWhole || i < n;
      r[i] = Isa::units(exists ? rows[i] + first : rows[0], kWhole ? kLanes * kPair : exists ? left : 0);
    }
    Isa::transpose(r);
    const int stop = kWhole ? kLanes : steps(left);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i < stop) Isa::store_unit(to + i * width * kLanes * kPair, r[i]);
    }
  }

  // rows: n keys of `depth` features. Packs their transpose.
  template <class In>
  static void pack_keys(const In* const* rows, int n, int depth, operand* packed) {
    const int all_vecs = vecs(n);
    const int all_steps = steps(depth);
    for (int p = 0; p < count(all_vecs); ++p) {
      const int first = begin(all_vecs, p);
      const int width = begin(all_vecs, p + 1) - first;
      operand* panel = at(packed, all_steps, first);
      for (int v = 0; v < width; ++v) {
        const int key = (first + v) * kLanes;
        for (int s = 0; s < all_steps; s += kLanes) {
          operand* to = panel + (static_cast<int64_t>(s) * width + v) * kLanes * kPair;
          const int left = depth - s * kPair;
          if (key + kLanes <= n && left >= kLanes * kPair) {
            pack_square<true>(rows + key, kLanes, s * kPair, left, to, width);
          } else {
            pack_square<false>(rows + key, n - key, s * kPair, left, to, width);
          }
        }
      }
    }
  }

  // The same of keys that lie in the packed layout, by fours: n is a multiple of 4, rows[i] for each multiple i of 4 is the
  // first unit of keys i to i + 3, which lie side by side, and units are `step` elements apart. `depth` makes whole units.
  template <class In>
  static void pack_quads(const In* const* rows, int n, int depth, int64_t step, operand* packed) {
    constexpr int kE = kPackedElements<In>;
    const int all_vecs = vecs(n);
    for (int p = 0; p < count(all_vecs); ++p) {
      const int first = begin(all_vecs, p);
      const int width = begin(all_vecs, p + 1) - first;
      operand* panel = at(packed, steps(depth), first);
      for (int v = 0; v < width; ++v) {
        const int key = (first + v) * kLanes;
        const In* quads[kLanes / 4];  // beyond the last one any will do
        for (int i = 0; i < kLanes / 4; ++i) quads[i] = rows[key + 4 * i < n ? key + 4 * i : key];
        operand* to = panel + v * kLanes * kPair;
        for (int d = 0; d < depth; d += kE) {
          const typename Isa::words w = Isa::join_words(quads, d / kE * step);
          Isa::store_unit(to, Isa::template unit_of<In>(w, 0));
          to += static_cast<int64_t>(width) * kLanes * kPair;
          if constexpr (kE > kPair) {
            Isa::store_unit(to, Isa::template unit_of<In>(w, 1));
            to += static_cast<int64_t>(width) * kLanes * kPair;
          }
        }
      }
    }
  }

  // rows: n keys of `columns` features; keys up to `depth` are zeros. Returns whether every element is finite: a
  // probability of zero hides a finite value of an invisible key, but not a NaN.
  template <class In>
  static bool pack_values(const In* const* rows, int n, int depth, int columns, operand* packed) {
    const int all_vecs = vecs(columns);
    bool finite = true;
    for (int p = 0; p < count(all_vecs); ++p) {
      finite &= pack_values_panel(rows, n, depth, columns, p, at(packed, steps(depth), begin(all_vecs, p)));
    }
    return finite;
  }

  // Panel p of them alone.
  template <class In>
  static bool pack_values_panel(const In* const* rows, int n, int depth, int columns, int p, operand* panel) {
    const int first = begin(vecs(columns), p);
    const int width = begin(vecs(columns), p + 1) - first;
    typename Isa::vec watch = Isa::set1(0.0f);
    for (int s = 0; s < steps(depth); ++s) {
      for (int v = 0; v < width; ++v) {
        const int column = (first + v) * kLanes;
        const int left = columns - column;
        const In* pair[kPair];
        for (int i = 0; i < kPair; ++i) {
          const int key = s * kPair + i;
          pair[i] = key < n ? rows[key] + column : nullptr;
        }
        const unit u = Isa::column_units(pair, pair[0] == nullptr ? 0 : left < kLanes ? left : kLanes);
        watch = Isa::watch_nonfinite(watch, u);
        Isa::store_unit(panel, u);
        panel += kLanes * kPair;
      }
    }
    const float sum = Isa::reduce_add(watch);
    return sum == sum;
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_PANEL_H_
