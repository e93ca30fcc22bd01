// Sampled attention mass: of each query block some rows take an exact softmax over all their visible keys, and a key
// block's score is the sum of its probabilities over those rows.
//
// A row tile is <= 48 sampled (token, head) rows of one KV head's group; it walks the key tiles from the first to the
// last that its last row sees. For one key tile (<= 128 keys, packed [D steps][keys], 32 KB at D = 64 in f32):
//   S = Q K^T                     2 D FLOP a key and row; S is 24 KB and stays in L1/L2, a K panel of 4 KB in L1
//   per row and segment (a block, or a piece of a long one): max, then the sum of 2^(S c - max); two loads and some 12
//   operations per vector, against D multiply-adds
// The (max, sum) pairs, 8 bytes per row and segment, are all that is kept of the scores. When the walk is over, a row's
// pairs give its maximum M and sum L, hence each segment's share sum * 2^(max - M) / L, added to its list's mass in the
// order of the rows. Packed keys are read once per row tile: 32 KB for 128 * 48 * 2 D FLOP, 1 byte per cycle.
#ifndef TESSERA_OPS_BLOCK_MASS_KERNEL_H_
#define TESSERA_OPS_BLOCK_MASS_KERNEL_H_

#include <float.h>
#include <math.h>

#include "ops/block_mass/plan.h"
#include "tile/gemm.h"
#include "tile/panel.h"

namespace tessera::block_mass {

// In: element type of q and k. kExact: probabilities accurate to f32.
template <class Isa, class In, bool kExact>
struct BlockMass {
  using vec = typename Isa::vec;
  using operand = typename Isa::operand;
  using P = Panels<Isa>;
  using G = Gemm<Isa>;
  static constexpr int kLanes = Isa::kLanes;

  const Problem& p;
  const Plan& plan;
  const char* base;
  int64_t b;          // request
  int64_t head;       // KV head
  int64_t first_key;  // that exists
  char* scratch;
  float factor;  // |scale| * log2(e): raw scores to log2 units

  // The keys of a key tile that exist: those not behind an invalid page.
  struct Keys {
    const In* row[kTileKeys];
    uint8_t place[kTileKeys];  // in the tile
    int count;
  };

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(scratch + offset);
  }

  BlockMass(const Problem& problem, const Plan& a_plan, char* workspace, int64_t request, int64_t kv_head, int worker)
      : p(problem), plan(a_plan), base(workspace), b(request), head(kv_head), first_key(select_topk::first_key(p, b)) {
    scratch = workspace + plan.workers + static_cast<size_t>(worker) * plan.scratch.bytes;
    const double magnitude = fabs(static_cast<double>(p.scale)) * 1.4426950408889634;
    factor = magnitude < FLT_MAX ? static_cast<float>(magnitude) : FLT_MAX;
  }

  // ---- Keys ---------------------------------------------------------------------------------------------------------

  static int64_t tile_begin(const Problem& p, const Plan& plan, int64_t key_tile) {
    const int64_t segment = key_tile * plan.tile_segments;
    return segment / plan.pieces * p.rule.block + segment % plan.pieces * plan.segment_keys;
  }
  static Keys locate(const Problem& p, const Plan& plan, int64_t b, int64_t head, int64_t key_tile) {
    const int64_t begin = tile_begin(p, plan, key_tile);
    int64_t keys = plan.tile_segments * plan.segment_keys;
    if (plan.pieces > 1) {  // the last piece of a block is shorter
      const int64_t left = p.rule.block - begin % p.rule.block;
      keys = left < keys ? left : keys;
    }
    const Sequence& s = p.table[b];
    keys = s.keys - begin < keys ? s.keys - begin : keys;
    Keys located;
    located.count = locate_keys(p.k, p.pages, s, b, head, begin, static_cast<int>(keys), located.row, located.place);
    return located;
  }
  static size_t slot(const Problem& p, const Plan& plan, int64_t b, int64_t head, int64_t key_tile) {
    return plan.packed + static_cast<size_t>((b * p.kv_heads + head) * plan.key_tiles + key_tile) * plan.packed_bytes;
  }
  static void pack(const Problem& p, const Plan& plan, char* base, int64_t b, int64_t head, int64_t key_tile) {
    const Keys keys = locate(p, plan, b, head, key_tile);
    auto* const packed = reinterpret_cast<operand*>(base + slot(p, plan, b, head, key_tile));
    P::pack_keys(keys.row, keys.count, static_cast<int>(p.dim), packed);
  }
  const operand* packed_tile(int64_t key_tile, const Keys& keys) const {
    if (plan.pack_once) return reinterpret_cast<const operand*>(base + slot(p, plan, b, head, key_tile));
    operand* packed = at<operand>(plan.scratch.packed);
    P::pack_keys(keys.row, keys.count, static_cast<int>(p.dim), packed);
    return packed;
  }

  // ---- Rows ---------------------------------------------------------------------------------------------------------

  int64_t samples(int64_t list) const {
    const int64_t tokens = list_end(p, list) - list_begin(p, list);
    return (tokens - 1) / p.stride + 1 + ((tokens - 1) % p.stride != 0 ? 1 : 0);
  }

  // Copies samples [begin, end) of a list, all heads of the group, as rows `row` and following: as operands, with a
  // negative scale's sign, which is exact. Returns the row after them.
  int load_rows(int64_t list, int64_t begin, int64_t end, int row) const {
    const int dim = static_cast<int>(p.dim);
    constexpr int kWide = kLanes * Isa::kPair;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t last = list_end(p, list) - 1;
      const int64_t sampled = list_begin(p, list) + i * p.stride;
      const int64_t t = sampled < last ? sampled : last;
      const int64_t sees = visible_keys(p, b, t);
      const int64_t visible = sees > first_key ? sees : 0;
      for (int64_t g = 0; g < p.group; ++g, ++row) {
        const In* from =
            static_cast<const In*>(p.q) + b * p.q_request + t * p.q_token + (head * p.group + g) * p.q_head;
        operand* to = at<operand>(plan.scratch.q) + row * plan.q_row;
        for (int d = 0; d < dim; d += kWide) Isa::store_unit(to + d, Isa::units(from + d, dim - d));
        if (p.scale < 0) {
          for (int d = 0; d < dim; ++d) to[d] = Isa::negate(to[d]);
        }
        at<int64_t>(plan.scratch.visible)[row] = visible;
      }
    }
    return row;
  }

  // ---- The walk over the keys ---------------------------------------------------------------------------------------

  // Rows are in the order of their positions: those that see a key tile are the last ones.
  void walk(int rows) const {
    const int64_t* visible = at<int64_t>(plan.scratch.visible);
    int first = 0;
    for (int64_t tile = 0; tile < plan.key_tiles; ++tile) {
      const int64_t begin = tile_begin(p, plan, tile);
      while (first < rows && visible[first] <= begin) ++first;
      if (first == rows) return;
      const Keys keys = locate(p, plan, b, head, tile);
      const operand* k = packed_tile(tile, keys);
      for (int r = first; r < rows; r += kTileRows) {
        score_tile(k, keys, tile, begin, r, rows - r < kTileRows ? rows - r : static_cast<int>(kTileRows));
      }
    }
  }

  // Scores rows [first, first + n) against a key tile and keeps the pairs of its segments.
  void score_tile(const operand* k, const Keys& keys, int64_t tile, int64_t begin, int first, int n) const {
    const operand* q_rows[kTileRows];
    float* s_rows[kTileRows];
    for (int i = 0; i < n; ++i) {
      q_rows[i] = at<operand>(plan.scratch.q) + (first + i) * plan.q_row;
      s_rows[i] = at<float>(plan.scratch.scores) + i * plan.score_row;
    }
    const int64_t* visible = at<int64_t>(plan.scratch.visible) + first;
    const int most = places_before(keys.place, keys.count, visible[n - 1] - begin);
    const int steps = P::steps(p.dim);
    G::all(k, P::vecs(keys.count), steps, steps, P::vecs(most), false, n, q_rows, s_rows,
           reinterpret_cast<const char*>(k) + plan.packed_bytes);
    const int64_t width = plan.tile_segments * plan.segment_keys;
    for (int i = 0; i < n; ++i) {
      const int64_t sees = visible[i] - begin;
      const int64_t pair = (first + i) * plan.segment_row + tile * plan.tile_segments;
      keep_segments(keys, s_rows[i], static_cast<int>(sees < width ? sees : width), at<float>(plan.scratch.max) + pair,
                    at<float>(plan.scratch.sum) + pair);
    }
  }

  // Of the places before `end`.
  void keep_segments(const Keys& keys, const float* s, int end, float* max, float* sum) const {
    const int width = static_cast<int>(plan.segment_keys);
    int first = 0;
    for (int begin = 0; begin < end; begin += width) {
      const int last = places_before(keys.place, keys.count, end - begin < width ? end : begin + width);
      keep_segment(s + first, last - first, max++, sum++);
      first = last;
    }
  }

  // s: n scores, then anything up to a whole vector. A NaN makes the sum NaN; where all else is -inf, max is -inf and
  // the sum of the rest 0.
  void keep_segment(const float* s, int n, float* max, float* sum) const {
    if (n == 0) {
      *max = -INFINITY;
      *sum = 0.0f;
      return;
    }
    const int full = n / kLanes;
    const int rest = n % kLanes;
    vec top = Isa::set1(-INFINITY);
    for (int v = 0; v < full; ++v) top = Isa::max(Isa::load(s + v * kLanes), top);
    if (rest != 0) top = Isa::max(Isa::keep_first(Isa::load(s + full * kLanes), rest, -INFINITY), top);
    const float raw = Isa::reduce_max(top);
    const float m = raw * factor;
    const vec scale = Isa::set1(factor);
    const vec minus_m = Isa::set1(raw == -INFINITY ? 0.0f : -m);
    vec total = Isa::set1(0.0f);
    for (int v = 0; v < full; ++v) {
      total = Isa::add(total, Isa::template exp2<kExact>(Isa::fma(Isa::load(s + v * kLanes), scale, minus_m)));
    }
    if (rest != 0) {
      const vec x = Isa::fma(Isa::load(s + full * kLanes), scale, minus_m);
      total = Isa::add(total, Isa::keep_first(Isa::template exp2<kExact>(x), rest, 0.0f));
    }
    *max = m;
    *sum = Isa::reduce_add(total);
  }

  // ---- From pairs to mass -------------------------------------------------------------------------------------------

  // Adds row r's probabilities to mass [segment_row]. The vector beside the last segment holds leftovers of other rows.
  void add_row(int r, float* mass) const {
    const int64_t visible = at<int64_t>(plan.scratch.visible)[r];
    const int64_t in_block = visible % p.rule.block;
    const int64_t whole = visible / p.rule.block * plan.pieces;
    const int64_t count = whole + (in_block + plan.segment_keys - 1) / plan.segment_keys;
    if (count == 0) return;
    const float* max = at<float>(plan.scratch.max) + r * plan.segment_row;
    float* sum = at<float>(plan.scratch.sum) + r * plan.segment_row;
    const auto left = [&](int64_t i) { return count - i < kLanes ? static_cast<int>(count - i) : kLanes; };
    vec top = Isa::set1(-INFINITY);
    for (int64_t i = 0; i < count; i += kLanes) {
      top = Isa::max(Isa::keep_first(Isa::load(max + i), left(i), -INFINITY), top);
    }
    const vec minus_m = Isa::set1(-Isa::reduce_max(top));
    vec total = Isa::set1(0.0f);
    for (int64_t i = 0; i < count; i += kLanes) {
      const vec weight = Isa::template exp2<kExact>(Isa::add(Isa::load(max + i), minus_m));
      const vec part = Isa::keep_first(Isa::mul(Isa::load(sum + i), weight), left(i), 0.0f);
      total = Isa::add(total, part);
      Isa::store(sum + i, part);
    }
    const float norm = 1.0f / Isa::reduce_add(total);
    for (int64_t i = 0; i < count; i += kLanes) {
      const vec share = Isa::keep_first(Isa::mul(Isa::load(sum + i), Isa::set1(norm)), left(i), 0.0f);
      Isa::store(mass + i, Isa::add(Isa::load(mass + i), share));
    }
  }

  // The pieces of each block become one number, in place.
  void join_pieces(float* mass) const {
    for (int64_t block = 0; block < p.blocks; ++block) {
      float sum = 0.0f;
      for (int64_t i = block * plan.pieces; i < (block + 1) * plan.pieces; ++i) sum += mass[i];
      mass[block] = sum;
    }
  }

  float* mass_of(int64_t i) const { return at<float>(plan.scratch.mass) + i * plan.segment_row; }

  static void score(const Problem& p, const Plan& plan, char* base, int64_t b, int64_t head, int64_t task, int worker) {
    const BlockMass self(p, plan, base, b, head, worker);
    const int64_t first = task * plan.lists_per_task;
    const int64_t lists = p.lists - first < plan.lists_per_task ? p.lists - first : plan.lists_per_task;
    for (int64_t i = 0; i < lists * plan.segment_row; ++i) self.mass_of(0)[i] = 0.0f;
    for (int64_t part = 0; part < plan.tiles_per_list; ++part) {
      const auto begin = [&](int64_t list) { return part * self.samples(list) / plan.tiles_per_list; };
      const auto end = [&](int64_t list) { return (part + 1) * self.samples(list) / plan.tiles_per_list; };
      int rows = 0;
      for (int64_t i = 0; i < lists; ++i) rows = self.load_rows(first + i, begin(first + i), end(first + i), rows);
      self.walk(rows);
      int row = 0;
      for (int64_t i = 0; i < lists; ++i) {
        const int64_t count = (end(first + i) - begin(first + i)) * p.group;
        for (const int stop = row + static_cast<int>(count); row < stop; ++row) self.add_row(row, self.mass_of(i));
      }
    }
    if (plan.pieces == 1) return;
    for (int64_t i = 0; i < lists; ++i) self.join_pieces(self.mass_of(i));
  }

  static constexpr Kernel kernel() { return {pack, score, kLanes, Isa::kPair}; }
};

}  // namespace tessera::block_mass

#endif  // TESSERA_OPS_BLOCK_MASS_KERNEL_H_
