// Scores of many rows against one tile of keys, S = Q K^T, for operators that need nothing of S but a number per key or
// block: the rows stand in L2 as operands, and the keys are packed panel by panel by the first rows that use them.
#ifndef TESSERA_TILE_SCORES_H_
#define TESSERA_TILE_SCORES_H_

#include <stdint.h>

#include "tile/gemm.h"
#include "tile/panel.h"

namespace tessera {

template <class Isa, class In>
struct TileScores {
  using operand = typename Isa::operand;
  using P = Panels<Isa>;
  using G = Gemm<Isa>;
  static constexpr int kLanes = Isa::kLanes;

  // The keys of a tile that exist: as rows, by fours in the packed layout, or as panels that the cache holds already.
  struct Keys {
    const In* const* row;
    int count;
    int64_t stride;         // elements from one row to the next where they lie side by side; 0: they do not
    const operand* panels;  // null: rows; else [steps][panel_stride], of which a step has the units of all keys
    int64_t panel_stride;
    int64_t quad_step = 0;  // not 0: rows are for Panels::pack_quads(), whose units are this far apart
  };

  // One row of q as operands, padded with zeros to whole vectors of them.
  static void load_row(const In* from, int dim, operand* to) {
    constexpr int kWide = kLanes * Isa::kPair;
    for (int d = 0; d < dim; d += kWide) Isa::store_unit(to + d, Isa::units(from + d, dim - d));
  }

  // Dots of n rows of q with the first `most` keys.
  static void multiply(const Keys& keys, int dim, int most, bool packs, bool keeps, int n, const operand* const* q,
                       float* const* dots, operand* packed) {
    for_each_panel(keys, dim, most, packs, keeps, packed, [&](const Panel& panel, Ahead* ahead) {
      G::one(panel.data, panel.stride, P::steps(dim), panel.vecs, false, n, q, dots, panel.key, ahead);
    });
  }

  struct Panel {
    const operand* data;
    int64_t stride;  // elements from one step to the next
    int vecs;        // that count
    int key;         // its first
  };

  // Calls use(panel, ahead) for the panels of the first `most` keys. `packs`: they are yet to be packed; `keeps`: and are
  // used again. A panel that nobody uses again is overwritten by the next, and so never leaves L1.
  template <class Use>
  static void for_each_panel(const Keys& keys, int dim, int most, bool packs, bool keeps, operand* packed,
                             const Use& use) {
    const int steps = P::steps(dim);
    const int vecs = P::vecs(keys.count);
    for (int panel = 0; panel < P::count(vecs); ++panel) {
      const int begin = P::begin(vecs, panel);
      const int end = P::begin(vecs, panel + 1);
      const int key = begin * kLanes;
      if (key >= most) return;
      const int stop = end * kLanes < keys.count ? end * kLanes : keys.count;
      const int columns = (P::vecs(most) < end ? P::vecs(most) : end) - begin;
      Ahead ahead = {};
      if (keys.panels != nullptr) {
        use(Panel{keys.panels + key * Isa::kPair, keys.panel_stride, columns, key}, &ahead);
        continue;
      }
      operand* data = P::at(packed, steps, keeps ? begin : 0);
      if (packs && keys.quad_step == 0) P::pack_keys(keys.row + key, stop - key, dim, data);
      if (packs && keys.quad_step != 0) P::pack_quads(keys.row + key, stop - key, dim, keys.quad_step, data);
      ahead = packs ? ahead_of(keys, stop) : G::panel_at(P::at(data, steps, end - begin), end - begin, steps);
      use(Panel{data, static_cast<int64_t>(end - begin) * kLanes * Isa::kPair, columns, key}, &ahead);
    }
  }

 private:
  // As many keys as a panel has from the one at `begin` on; behind the last, where the next tile's are if they follow.
  static Ahead ahead_of(const Keys& keys, int begin) {
    if (keys.stride == 0) return {};
    const In* first = begin < keys.count ? keys.row[begin] : keys.row[keys.count - 1] + keys.stride;
    return {reinterpret_cast<const char*>(first),
            reinterpret_cast<const char*>(first + Isa::kVecs * kLanes * keys.stride)};
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_SCORES_H_
