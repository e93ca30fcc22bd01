// Block scores by the best key: of each row (query token, index head), the maximum over a block's visible keys of q . k.
//
// A task is a tile of rows that share a key head (the 4 index heads of 96 tokens, or 384 tokens of one head, or a single
// token); it walks the keys from its first block to the last key that its last token sees, 128 at a time. For one such key
// tile and each 48 rows:
//   S = Q K^T  2 D FLOP a key and row, panel by panel; the first 48 rows pack each panel (8 KB as f32 at D = 128) just
//   before they use it, the others find it in L2; S is 24 KB
//   per row and block of the tile: the maximum, into the row's block scores; a load, a maximum and an addition per vector
// AVX2, D = 128: a row and key tile are 2,048 multiply-adds, 1,024 cycles; its maximum takes some 30. Packing 128 keys
// takes 5,500 cycles, 14 for each of 384 rows: packed once per call, keys would save 1.5 % and cost memory of twice their
// size. A lone token of 4 heads spends half its time packing and reads keys at 3 bytes a cycle.
//
// Where all rows see all keys of a tile nothing is masked; keys that no row sees are not computed.
#ifndef TESSERA_OPS_BLOCK_MAX_KERNEL_H_
#define TESSERA_OPS_BLOCK_MAX_KERNEL_H_

#include <math.h>

#include "core/packed_layout.h"
#include "ops/block_max/plan.h"
#include "tile/scores.h"

namespace tessera::block_max {

// In: element type of q and k.
template <class Isa, class In>
struct BlockMax {
  using vec = typename Isa::vec;
  using operand = typename Isa::operand;
  using P = Panels<Isa>;
  using S = TileScores<Isa, In>;
  static constexpr int kLanes = Isa::kLanes;

  const Problem& p;
  const Plan& plan;
  const Task& task;
  char* scratch;

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(scratch + offset);
  }

  // The part of a key tile that exists: all of it, but for keys behind invalid pages.
  struct Keys {
    const operand* panels;  // null, or a part of a page that is panels already: then there are no rows
    const In* row[kKeyTile];
    uint8_t place[kKeyTile];  // in the tile
    int count;
    int64_t first_block;      // that the tile has keys of ...
    int bound[kKeyTile + 1];  // ... whose block first_block + i has keys [bound[i], bound[i + 1]) of `row`
  };

  // ---- Rows ---------------------------------------------------------------------------------------------------------

  // Row t * heads + h is head `head` + h of token `first` + t.
  void load_rows(int64_t head) const {
    const int dim = static_cast<int>(p.dim);
    operand* to = at<operand>(plan.scratch.q);
    for (int64_t t = task.first; t < task.end; ++t) {
      const In* token =
          static_cast<const In*>(p.q) + task.request->b * p.q_request + (task.request->seq.row + t) * p.q_token;
      for (int64_t h = head; h < head + plan.heads; ++h, to += plan.q_row) S::load_row(token + h * p.q_head, dim, to);
    }
  }

  void clear_scores() const {
    const int64_t heads = task.head_stride == 0 ? 1 : plan.heads;
    for (int64_t t = 0; t < task.end - task.first; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        float* to = task.scores + t * task.token_stride + h * task.head_stride;
        for (int64_t n = task.first_block; n < task.end_block; ++n) to[n * task.block_stride] = -INFINITY;
      }
    }
  }

  // ---- Keys ---------------------------------------------------------------------------------------------------------

  void locate(int64_t head, int64_t begin, int64_t end, Keys* keys) const {
    const int n = static_cast<int>(end - begin);
    keys->panels = nullptr;
    if (p.pages.packed) {
      locate_packed(head, begin, n, keys);
    } else {
      keys->count =
          locate_keys(p.k, p.pages, task.request->seq, task.request->b, head, begin, n, keys->row, keys->place);
    }
    keys->first_block = begin / p.block;
    keys->bound[0] = 0;
    for (int64_t i = 0; keys->bound[i] < keys->count; ++i) {
      keys->bound[i + 1] = places_before(keys->place, keys->count, (keys->first_block + i + 1) * p.block - begin);
    }
  }

  // A page in the packed layout has the units of this ISA where an element is an operand; whole vectors of it are read.
  void locate_packed(int64_t head, int64_t begin, int n, Keys* keys) const {
    const int64_t b = task.request->b;
    if constexpr (kSameType<In, operand>) {
      const PageRun run = page_run(p.pages, b, begin);
      if (run.page >= 0 && P::vecs(n) * kLanes <= run.keys && p.dim % Isa::kPair == 0) {
        keys->panels =
            static_cast<const operand*>(p.k.data) + run.page * p.k.page + head * p.k.head + run.slot * Isa::kPair;
        keys->count = n;
        for (int i = 0; i < n; ++i) keys->place[i] = static_cast<uint8_t>(i);
        return;
      }
    }
    keys->count = copy_packed_keys(p.k, p.pages, b, head, begin, n, p.dim, at<In>(plan.scratch.copied), p.dim,
                                   keys->row, keys->place);
  }

  // Tokens are in the order of their positions: those that see a key tile are the last ones.
  void walk(int64_t key_head) const {
    const int64_t* visible = at<int64_t>(plan.scratch.visible);
    const int64_t tokens = task.end - task.first;
    const int64_t last = visible[tokens - 1];
    if (task.first_block >= blocks_before(p, last)) return;
    const int64_t stop = task.end_block < blocks_before(p, last) ? task.end_block * p.block : last;
    int64_t first = 0;
    Keys keys;
    for (int64_t begin = task.first_block * p.block; begin < stop; begin += kKeyTile) {
      while (visible[first] <= begin) ++first;
      locate(key_head, begin, begin + kKeyTile < stop ? begin + kKeyTile : stop, &keys);
      if (keys.count == 0) continue;
      int32_t* limits = at<int32_t>(plan.scratch.limits);
      for (int64_t t = first; t < tokens; ++t) {
        limits[t] = places_before(keys.place, keys.count, visible[t] - begin);
      }
      // The last rows see the most keys: while they are multiplied, the panels are packed.
      const int64_t rows = (tokens - first) * plan.heads;
      for (int64_t group = (rows - 1) / kGroupRows; group >= 0; --group) {
        const int64_t row = group * kGroupRows;
        const int n = rows - row < kGroupRows ? static_cast<int>(rows - row) : kGroupRows;
        score_rows(keys, first * plan.heads + row, n, rows - row <= kGroupRows, rows > kGroupRows);
      }
    }
  }

  // ---- Scores -------------------------------------------------------------------------------------------------------

  // `packs`: the panels are yet to be packed; `keeps`: and are used again.
  void score_rows(const Keys& keys, int64_t first, int n, bool packs, bool keeps) const {
    const operand* q[kGroupRows];
    float* dots[kGroupRows];
    for (int i = 0; i < n; ++i) {
      q[i] = at<operand>(plan.scratch.q) + (first + i) * plan.q_row;
      dots[i] = at<float>(plan.scratch.dots) + i * plan.dot_row;
    }
    const int32_t* limits = at<int32_t>(plan.scratch.limits);
    const typename S::Keys tile = {keys.row, keys.count, p.pages.packed ? 0 : p.k.token, keys.panels, p.k.token};
    S::multiply(tile, static_cast<int>(p.dim), limits[(first + n - 1) / plan.heads], packs, keeps, n, q, dots,
                at<operand>(plan.scratch.packed));
    float* const scores = task.scores + keys.first_block * task.block_stride;
    int64_t token = first / plan.heads;
    int64_t head = first % plan.heads;
    for (int i = 0; i < n; ++i) {
      keep_blocks(keys, dots[i], limits[token], scores + token * task.token_stride + head * task.head_stride);
      if (++head == plan.heads) {
        head = 0;
        ++token;
      }
    }
  }

  // dots: of one row with the first `limit` keys, then anything up to a whole vector.
  void keep_blocks(const Keys& keys, const float* dots, int limit, float* to) const {
    for (int i = 0; keys.bound[i] < limit; ++i, to += task.block_stride) {
      const int end = keys.bound[i + 1] < limit ? keys.bound[i + 1] : limit;
      const int n = end - keys.bound[i];
      if (n > 0) *to = larger(*to, largest(dots + keys.bound[i], n));
    }
  }

  // NaN if one of them is.
  static float larger(float a, float b) { return a > b || a != a ? a : b; }

  // Of n >= 1 dots, followed by anything up to a whole vector. One 0 and one NaN, whichever of theirs a maximum meets.
  static float largest(const float* dots, int n) {
    const float most = n == 1 ? *dots : maximum(dots, n);
    return most == most ? most + 0.0f : NAN;
  }

  // Vector maxima lose a NaN; a sum keeps it.
  static float maximum(const float* dots, int n) {
    vec top = Isa::set1(-INFINITY);
    vec sum[2] = {Isa::set1(0.0f), Isa::set1(0.0f)};  // two, since an addition takes longer than the rest
    int i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      const vec x = Isa::load(dots + i);
      const vec y = Isa::load(dots + i + kLanes);
      top = Isa::max(y, Isa::max(x, top));
      sum[0] = Isa::add(x, sum[0]);
      sum[1] = Isa::add(y, sum[1]);
    }
    for (; i < n; i += kLanes) {
      const vec x = Isa::load(dots + i);
      top = Isa::max(Isa::keep_first(x, n - i, -INFINITY), top);
      sum[0] = Isa::add(Isa::keep_first(x, n - i, 0.0f), sum[0]);
    }
    const float all = Isa::reduce_add(Isa::add(sum[0], sum[1]));
    if (all == all) return Isa::reduce_max(top);
    float most = -INFINITY;  // a NaN, or infinities of both signs
    for (i = 0; i < n; ++i) most = larger(most, dots[i]);
    return most;
  }

  static void score(const Problem& p, const Plan& plan, const Task& task, char* scratch) {
    const BlockMax self{p, plan, task, scratch};
    self.clear_scores();
    int64_t* visible = self.template at<int64_t>(plan.scratch.visible);
    for (int64_t t = task.first; t < task.end; ++t) {
      visible[t - task.first] = visible_keys(task.request->seq, true, t);
    }
    for (int64_t pass = 0; pass < plan.passes; ++pass) {
      const int64_t head = task.head + pass * plan.heads;
      self.load_rows(head);
      self.walk(p.key_heads == 1 ? 0 : head);
    }
  }

  static constexpr Kernel kernel() { return {score, kLanes, Isa::kPair}; }
};

}  // namespace tessera::block_max

#endif  // TESSERA_OPS_BLOCK_MAX_KERNEL_H_
