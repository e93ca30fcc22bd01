// Block attention: out[t, h] = sum_j softmax_j(scale q[t,h].k[j]) v[j] over the keys j of the blocks on t's list.
//
// A task is a tile of T query tokens x G heads of one KV head's group (T G = Isa::kTileRows rows) and walks the union of
// the tokens' lists block by block, ascending, so that all rows that chose a block share its packed K and V panels
// ([steps][columns] units, tile/panel.h). For one key tile (<= 128 keys) and 48 rows at a time:
//   S = Q K^T     2 D FLOP a key and row; S is 24 KB and stays in L1/L2
//   P = 2^(S c - m), l += P   one pass over S, rescaling O only when the reference m must move
//   O += P V      2 Dv FLOP a key and row; O is loaded and stored once per key tile, 3 % of the time
// Q and O of a tile (2 x 192 x 512 bytes at D = 128 in f32) and one K and one V tile (64 KB each) share L2; the panel
// in use and the row tile live in L1 and registers. The next panel is prefetched while the present one is multiplied.
// Bytes: a tile reads each packed key tile once: 128 KB for 4 * 128 * 128 * rows FLOP, far from memory bound from a few
// rows on. Rows that see only part of a key tile (the causal diagonal, the ragged end) see a prefix of it: S stops at the
// last visible key of the 48 rows, probabilities after a row's own last key are exact zeros.
#ifndef TESSERA_OPS_BLOCK_ATTN_KERNEL_H_
#define TESSERA_OPS_BLOCK_ATTN_KERNEL_H_

#include <math.h>

#include "ops/block_attn/keys.h"
#include "ops/block_attn/rows.h"
#include "ops/block_attn/walk.h"
#include "tile/direct.h"
#include "tile/gemm.h"
#include "tile/panel.h"

namespace tessera::block_attn {

// In: element type of k and v; of q and out too, unless those are f32. kExact: f32 accuracy.
template <class Isa, class In, bool kExact>
struct BlockAttn : Rows<Isa, In, kExact> {
  using operand = typename Isa::operand;
  using Base = Rows<Isa, In, kExact>;
  using P = Panels<Isa>;
  using G = Gemm<Isa>;
  using Direct = DirectScores<Isa, In>;
  using Tiles = KeyTiles<Isa, In>;
  using KeyTile = Keys<In>;
  using Base::scratch, Base::p, Base::plan, Base::r, Base::head, Base::tokens, Base::lists, Base::o_vecs;
  static constexpr int kLanes = Isa::kLanes;

  using Base::Base;

  // ---- The walk ----

  // `which` of two buffers for keys that are copied.
  void locate(const Visit& visit, int which, KeyTile* keys) const {
    In* const rows = at<In>(scratch, plan.scratch.copied) + which * kKeyTile * (p.dim + p.dim_v);
    Tiles::locate(p, plan, r, head, visit.block, visit.piece, rows, keys);
  }

  // Works through the union of the lists; chunk < 0: all chunks, merging each finished one into the row's sum.
  void walk(int64_t chunk) const {
    KeyTile keys[2];  // this tile's and the next one's
    int now = 0;
    Walk<Isa> tiles(*this, chunk);
    bool more = tiles.advance();
    if (more) locate(tiles.now, now, &keys[now]);
    while (more) {
      const Visit visited = tiles.now;
      more = tiles.advance();
      if (more) locate(tiles.now, 1 - now, &keys[1 - now]);
      if (chunk < 0 && visited.begins != 0) fold_rows(visited.begins);
      if (keys[now].count > 0) visit(visited, keys[now], more ? &keys[1 - now] : nullptr);
      now = 1 - now;
    }
  }

  // Ends a chunk of the rows of these lists.
  void fold_rows(uint64_t begins) const {
    for (; begins != 0; begins &= begins - 1) {
      const int64_t i = __builtin_ctzll(begins);
      for (int64_t row = 0; row < this->list_rows(i); ++row) this->fold(this->first_row(i) + row);
    }
  }

  // One key tile, for the rows that take it and see a key of it.
  void visit(const Visit& at_tile, const KeyTile& keys, const KeyTile* next) const {
    const int64_t* visible = at<int64_t>(scratch, plan.scratch.visible);
    int32_t* rows = at<int32_t>(scratch, plan.scratch.rows);
    int32_t* limits = at<int32_t>(scratch, plan.scratch.limits);
    const bool direct = r.source == Source::kDirect;
    int64_t count = 0;
    Group group;
    Fetch fetch = Tiles::fetch(p, r, keys, next);
    for (uint64_t left = at_tile.takes; left != 0; left &= left - 1) {
      const int64_t i = __builtin_ctzll(left);
      const int64_t begin = count;
      const int64_t row_end = this->first_row(i) + this->list_rows(i);
      for (int64_t row = this->first_row(i); row < row_end; row += p.group) {
        const int sees = places_before(keys.place, keys.count, visible[row / p.group] - keys.begin);
        if (sees == 0) continue;
        for (int64_t g = 0; g < p.group; ++g, ++count) {
          rows[count] = static_cast<int32_t>(row + g);
          limits[count] = sees;
        }
      }
      if (direct) attend_direct(keys, i, rows + begin, limits + begin, count - begin, &fetch, &group);
    }
    if (direct && group.n > 0) weigh(keys, nullptr, group, &fetch);
    if (!direct && count > 0) {
      const Packed<Isa> packed = Tiles::packed(p, plan, r, this->base, head, at_tile.block, at_tile.piece, keys);
      attend_packed(keys, packed, rows, limits, count, &fetch);
    }
  }

  // ---- One key tile ----

  // Rows that go through softmax and PV together: each sees at least one key of the tile.
  struct Group {
    int slots = 0;  // rows of scores in use
    int n = 0;
    int32_t rows[kGroupRows];
    int32_t limits[kGroupRows];  // keys that each sees
    float* scores[kGroupRows];
    const operand* probs[kGroupRows];
    float* o[kGroupRows];
    int most = 0;
    int least = static_cast<int>(kKeyTile);
  };

  // The row whose scores lie in `slot` of the scratch.
  void add_row(int32_t row, int32_t limit, int64_t slot, Group* g) const {
    g->rows[g->n] = row;
    g->limits[g->n] = limit;
    g->scores[g->n] = score_row(slot);
    g->probs[g->n] = at<operand>(scratch, plan.scratch.probs) + slot * plan.score_row;
    g->o[g->n] = at<float>(scratch, plan.scratch.o) + row * plan.o_row;
    g->most = limit > g->most ? limit : g->most;
    g->least = limit < g->least ? limit : g->least;
    ++g->n;
  }
  float* score_row(int64_t slot) const { return at<float>(scratch, plan.scratch.scores) + slot * plan.score_row; }

  // rows, limits: the rows of all lists that see at least one key of the tile, and how many each sees.
  void attend_packed(const KeyTile& keys, const Packed<Isa>& packed, const int32_t* rows, const int32_t* limits,
                     int64_t count, Fetch* fetch) const {
    const int64_t groups = (count + kGroupRows - 1) / kGroupRows;
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t begin = i * count / groups;
      Group g;
      const operand* q_rows[kGroupRows];
      for (int64_t row = begin; row < (i + 1) * count / groups; ++row) {
        q_rows[g.n] = this->q_row(rows[row]);
        add_row(rows[row], limits[row], g.n, &g);
      }
      const int width = P::vecs(keys.count);
      for (int j = 0; j < P::count(width) && P::begin(width, j) < P::vecs(g.most); ++j) {
        Ahead panel = panel_after(packed.k, width, j, packed.v, o_vecs);
        multiply(packed.k, width, j, P::vecs(g.most), P::steps(p.dim), false, g.n, q_rows, g.scores,
                 packed.k.step == 0 ? &panel : &fetch->values);
      }
      weigh(keys, &packed, g, fetch);
    }
  }

  // The same for the rows of list i, against keys where they lie. They join the group, which is weighed when it is full.
  void attend_direct(const KeyTile& keys, int64_t list, const int32_t* rows, const int32_t* limits, int64_t count,
                     Fetch* fetch, Group* g) const {
    const int64_t first_row = this->first_row(list);
    for (int64_t i = 0; i < count;) {
      const int64_t begin = (rows[i] - first_row) / kGroupRows * kGroupRows;
      const int64_t left = this->list_rows(list) - begin;
      const int n = static_cast<int>(left < kGroupRows ? left : kGroupRows);
      if (g->slots + n > kGroupRows) {
        weigh(keys, nullptr, *g, fetch);
        *g = {};
      }
      int most = 0;
      for (; i < count && rows[i] < first_row + begin + n; ++i) {
        add_row(rows[i], limits[i], g->slots + rows[i] - first_row - begin, g);
        most = limits[i] > most ? limits[i] : most;
      }
      float* scores[kGroupRows];
      for (int slot = 0; slot < n; ++slot) scores[slot] = score_row(g->slots + slot);
      Direct::scores(keys.k, most, static_cast<int>(p.dim), this->q_panel(list, begin), n,
                     at<char>(scratch, plan.scratch.direct), scores, &fetch->values);
      g->slots += n;
    }
  }

  // Turns scores into probabilities and adds the values they weigh, panel by panel: packed ones, or (null) each packed
  // here into the nearest cache.
  void weigh(const KeyTile& keys, const Packed<Isa>* packed, const Group& g, Fetch* fetch) const {
    for (int i = 0; i < g.n; ++i) {
      Base::Softmax::step(g.scores[i], const_cast<operand*>(g.probs[i]), g.limits[i], P::vecs(g.most), this->factor,
                          this->state(g.rows[i]), o_vecs);
    }
    const int visible_end = packed == nullptr ? g.most : keys.count;
    // A page has another request's slot, or none, beside the last of an odd number of keys.
    const bool in_place = r.source == Source::kInPlace;
    const bool partly = g.least != visible_end || (in_place && keys.count % Isa::kPair != 0);
    KeyTile copied;
    if (in_place && partly) {
      copied.begin = keys.begin;
      Tiles::copy_rows(p, r, head, keys.count, at<In>(scratch, plan.scratch.copied), &copied);
    }
    for (int j = 0; j < P::count(o_vecs); ++j) {
      const bool finite = packed == nullptr ? pack_panel(keys, g.most, j) : packed->finite;
      if (!finite && partly) {
        add_panel_hiding(in_place ? copied : keys, j, g);
      } else if (packed == nullptr) {
        add_buffer(j, P::steps(g.most), g, 0, g.n, &fetch->next_keys);
      } else {
        Ahead panel = panel_after(packed->v, o_vecs, j, packed->k, P::vecs(keys.count));
        multiply(packed->v, o_vecs, j, o_vecs, P::steps(g.most), true, g.n, g.probs, g.o,
                 packed->v.step == 0 ? &panel : &fetch->next_keys);
      }
    }
  }

  // Panel j of a matrix of `width` vectors: C's columns [begin(j), begin(j + 1)), of which the first `columns` count.
  static void multiply(const Matrix<Isa>& m, int width, int j, int columns, int steps, bool accumulate, int n,
                       const operand* const* a, float* const* c, Ahead* ahead) {
    const int first = P::begin(width, j);
    const int end = P::begin(width, j + 1);
    G::one(m.panel(first), m.stride(end - first), steps, (end < columns ? end : columns) - first, accumulate, n, a, c,
           static_cast<int64_t>(first) * kLanes, ahead);
  }
  // What is read after panel j: the next one, or the first of another matrix.
  static Ahead panel_after(const Matrix<Isa>& m, int width, int j, const Matrix<Isa>& other, int other_width) {
    const bool last = j + 1 == P::count(width);
    const Matrix<Isa>& from = last ? other : m;
    const int first = last ? 0 : P::begin(width, j + 1);
    const int end = P::begin(last ? other_width : width, last ? 1 : j + 2);
    return G::panel_at(from.panel(first), end - first, from.steps);
  }

  bool pack_panel(const KeyTile& keys, int count, int j) const {
    return P::pack_values_panel(keys.v, count, count, static_cast<int>(p.dim_v), j,
                                at<operand>(scratch, plan.scratch.values));
  }
  // Adds the panel that pack_panel() made to rows [begin, end) of the group.
  void add_buffer(int j, int steps, const Group& g, int begin, int end, Ahead* ahead) const {
    const int first = P::begin(o_vecs, j);
    const int width = P::begin(o_vecs, j + 1) - first;
    G::one(at<operand>(scratch, plan.scratch.values), static_cast<int64_t>(width) * kLanes * Isa::kPair, steps, width,
           true, end - begin, g.probs + begin, g.o + begin, static_cast<int64_t>(first) * kLanes, ahead);
  }

  // The slow, exact way where an invisible value may be NaN or infinite: 0 * NaN would reach the row, so rows that see
  // equally many keys get values packed up to there.
  void add_panel_hiding(const KeyTile& keys, int j, const Group& g) const {
    for (int begin = 0; begin < g.n;) {
      int end = begin + 1;
      while (end < g.n && g.limits[end] == g.limits[begin]) ++end;
      pack_panel(keys, g.limits[begin], j);
      Ahead nothing = {};
      add_buffer(j, P::steps(g.limits[begin]), g, begin, end, &nothing);
      begin = end;
    }
  }

  // ---- Tasks ----

  static void attend(const Problem& p, const Plan& plan, const Request& r, char* base, int64_t head, int64_t tile,
                     int64_t chunk, int worker) {
    const BlockAttn self(p, plan, r, base, head, tile, worker);
    const int64_t rows = self.tokens * p.group;
    const bool folds = !r.split && r.chunks > 1;
    Walk<Isa>::read_lists(self);
    self.load_q();
    for (int64_t t = 0; t < self.tokens; ++t) {
      at<int64_t>(self.scratch, plan.scratch.visible)[t] = visible_keys(r.seq, p.causal, self.first_token + t);
    }
    for (int64_t row = 0; row < rows; ++row) {
      self.clear_row(row);
      if (folds) self.clear_sum(row);
    }
    self.walk(r.split ? chunk : -1);
    for (int64_t row = 0; row < rows; ++row) {
      if (r.split) {
        self.store_partial(chunk, row);
      } else if (folds) {
        self.merge_into_sum(row, self.part_of(row));
        self.finish_row(row, self.sum_part(row));
      } else {
        self.finish_row(row, self.part_of(row));
      }
    }
  }

  static void merge(const Problem& p, const Plan& plan, const Request& r, char* base, int64_t head, int64_t tile,
                    int worker) {
    const BlockAttn self(p, plan, r, base, head, tile, worker);
    for (int64_t row = 0; row < self.tokens * p.group; ++row) {
      self.merge_partials(row);
      self.finish_row(row, self.sum_part(row));
    }
  }

  static constexpr Kernel kernel() {
    return {Tiles::pack, attend, merge, kLanes, Isa::kPair, Isa::kTileRows, kLanes * Isa::kVecs, Direct::scratch_bytes};
  }
};

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_KERNEL_H_
