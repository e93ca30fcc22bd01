// Scores of compressed keys: for each row of queries, the sum over its heads of the positive parts of q . k.
//
// A task is a tile of rows of one request (96 rows of 4 heads) against a range of keys, 128 at a time. For one such key tile
// and each 12 rows:
//   S = Q K^T   2 D FLOP a key and head, panel by panel, as in tile/scores.h; heads are summed in registers, and the sums
//               of 12 rows stay in L1
//   the sink    a store per vector, or a comparison with the row's bar (tile/best.h)
// AVX2, 4 heads, D = 128: a row and 8 keys are 512 multiply-adds, 256 cycles; the sum takes 8 and the sink some 5. The scores
// of a row are 4 bytes a key, written once. A lone row of 4 heads spends half its time packing keys.
//
// Keys that no row of the tile sees are not computed; where all rows see all of them nothing is masked. Of one or two rows,
// keys that screen.h says cannot be among the best are neither read nor computed, once the rows have bars.
#ifndef TESSERA_OPS_QSA_SCORE_KERNEL_H_
#define TESSERA_OPS_QSA_SCORE_KERNEL_H_

#include <math.h>

#include "ops/qsa_score/plan.h"
#include "ops/qsa_score/screen.h"
#include "ops/qsa_score/tile.h"
#include "tile/head_sums.h"
#include "tile/scores.h"

namespace tessera::qsa_score {

// In: element type of q and k.
template <class Isa, class In>
struct QsaScore : Tile<Isa, In> {
  using vec = typename Isa::vec;
  using operand = typename Isa::operand;
  using S = TileScores<Isa, In>;
  using Sums = HeadSums<Isa>;
  static constexpr int kLanes = Isa::kLanes;

  using Base = Tile<Isa, In>;
  using Keys = typename Base::Keys;
  using Base::best, Base::first_row, Base::locate, Base::p, Base::plan, Base::row, Base::rows, Base::scratch,
      Base::task;

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(scratch + offset);
  }

  // ---- Rows ---------------------------------------------------------------------------------------------------------

  void load_rows() const {
    operand* to = at<operand>(plan.scratch.q);
    for (int64_t t = 0; t < rows(); ++t) {
      const In* q = static_cast<const In*>(p.q) + row_offset(p.rows, p.q_stride, first_row() + t);
      for (int64_t h = 0; h < p.heads; ++h, to += plan.q_row)
        S::load_row(q + h * p.q_head, static_cast<int>(p.dim), to);
    }
    load_weights();
  }

  void load_weights() const {
    if (p.weights == nullptr) return;
    float* to = at<float>(plan.scratch.weights);
    for (int64_t t = 0; t < rows(); ++t) {
      const float* const w = p.weights + row_offset(p.rows, p.weights_stride, first_row() + t);
      for (int64_t h = 0; h < p.heads; ++h) *to++ = w[h * p.weights_head];
    }
  }

  // ---- Keys ---------------------------------------------------------------------------------------------------------

  void run() const {
    int64_t first = task.end;
    int64_t last = task.begin;
    for (int64_t t = 0; t < rows(); ++t) {
      if (p.selects) best(t).clear();
      if (!needs_scores(p, row(t))) continue;
      first = row(t).begin < first ? row(t).begin : first;
      last = row(t).end > last ? row(t).end : last;
    }
    if (first < task.begin) first = task.begin;
    if (last > task.end) last = task.end;
    first = task.begin + (first - task.begin) / kKeyTile * kKeyTile;
    if (first >= last) first = last = task.begin;
    if (!p.selects) {
      for (int64_t t = 0; t < rows(); ++t) {
        clear(t, task.begin, first);
        clear(t, last, task.end);
      }
    }
    if (first == last) return;
    load_rows();
    const bool screens = p.codes.data != nullptr && rows() <= kScreenRows && load_screen();
    Keys keys, few;
    few.count = 0;
    few.sparse = true;
    keys.sparse = false;
    float bars[kScreenRows];
    const auto take = [&](const In* key, int64_t id) {
      if (few.count == kKeyTile) score_few(&few);
      few.row[few.count] = key;
      few.id[few.count++] = static_cast<int32_t>(id);
    };
    for (int64_t begin = first; begin < last; begin += kKeyTile) {
      const int64_t end = begin + kKeyTile < last ? begin + kKeyTile : last;
      if (screens && load_bars(bars)) {
        screen().pick(row(0).request, begin, static_cast<int>(end - begin), rows(), bars, take);
        continue;
      }
      locate(row(0), begin, end, &keys);
      score_keys(keys, see(keys));
    }
    score_few(&few);
  }

  // The bars that bounds must be above; false: some row has none yet.
  bool load_bars(float* bars) const {
    bool all = true;
    for (int64_t t = 0; t < rows(); ++t) {
      bars[t] = needs_scores(p, row(t)) ? shared_bar(best(t).head()->bar, task.bars + t) : INFINITY;
      all = all && bars[t] == bars[t];
    }
    return all;
  }

  // Keys of several tiles that passed the screen.
  void score_few(Keys* few) const {
    if (few->count == 0) return;
    int64_t active = 0;
    for (int64_t t = 0; t < rows(); ++t) {
      at<int32_t>(plan.scratch.low)[t] = 0;
      at<int32_t>(plan.scratch.high)[t] = few->count;
      at<int32_t>(plan.scratch.active)[active] = static_cast<int32_t>(t);
      active += needs_scores(p, row(t)) ? 1 : 0;
    }
    score_keys(*few, active);
    few->count = 0;
  }

  Screen<Isa, In> screen() const { return {p, scratch + plan.scratch.screen}; }

  bool load_screen() const {
    bool all = true;
    for (int64_t t = 0; t < rows(); ++t) {
      const In* const q = static_cast<const In*>(p.q) + row_offset(p.rows, p.q_stride, first_row() + t);
      if (needs_scores(p, row(t))) all = all && screen().load_row(t, q, weights(t));
    }
    return all;
  }

  // Notes which rows see which of the keys, and returns how many rows see some. The others have nothing there.
  int64_t see(const Keys& keys) const {
    int32_t* const active = at<int32_t>(plan.scratch.active);
    int64_t count = 0;
    for (int64_t t = 0; t < rows(); ++t) {
      const Row& r = row(t);
      const int low = needs_scores(p, r) ? places_before(keys.place, keys.count, r.begin - keys.begin) : 0;
      const int high = needs_scores(p, r) ? places_before(keys.place, keys.count, r.end - keys.begin) : 0;
      if (low < high) {
        at<int32_t>(plan.scratch.low)[t] = low;
        at<int32_t>(plan.scratch.high)[t] = high;
        active[count++] = static_cast<int32_t>(t);
      } else if (!p.selects) {
        clear(t, keys.begin, keys.end);
      }
    }
    return count;
  }

  // The first rows, which pack the keys, pack all that any row sees.
  void score_keys(const Keys& keys, int64_t active) const {
    for (int64_t first = 0; first < active; first += plan.group_rows) {
      const int64_t end = first + plan.group_rows < active ? first + plan.group_rows : active;
      const int most = most_seen(first == 0 ? 0 : first, first == 0 ? active : end);
      score_rows(keys, first, end, most, first == 0, active > plan.group_rows);
    }
  }

  // Keys that one of the active rows [first, end) sees are among the first so many.
  int most_seen(int64_t first, int64_t end) const {
    int most = 0;
    for (int64_t a = first; a < end; ++a) {
      const int high = at<int32_t>(plan.scratch.high)[at<int32_t>(plan.scratch.active)[a]];
      most = high > most ? high : most;
    }
    return most;
  }

  // ---- Scores -------------------------------------------------------------------------------------------------------

  void score_rows(const Keys& keys, int64_t first, int64_t end, int most, bool packs, bool keeps) const {
    const int32_t* const active = at<int32_t>(plan.scratch.active) + first;
    const typename S::Keys tile = {keys.row, keys.count, p.k.token, nullptr, 0};
    typename Sums::Row group[kGroupHeads];
    for (int64_t a = 0; a < end - first; ++a) {
      float* const stored = in_place(keys, active[a]);
      group[a] = {at<operand>(plan.scratch.q) + active[a] * p.heads * plan.q_row, weights(active[a]),
                  stored != nullptr ? stored : sums(a)};
    }
    const auto add = [&](const typename S::Panel& panel, Ahead* ahead) {
      const typename Sums::Panel columns = {panel.data, panel.stride, Panels<Isa>::steps(p.dim), panel.vecs};
      Sums::add(columns, group, end - first, plan.q_row, p.heads, p.scale, panel.key, ahead);
    };
    S::for_each_panel(tile, static_cast<int>(p.dim), most, packs, keeps, at<operand>(plan.scratch.packed), add);
    for (int64_t a = 0; a < end - first; ++a) {
      if (group[a].sums == sums(a)) keep(keys, active[a], sums(a));
    }
  }

  const float* weights(int64_t t) const {
    return p.weights == nullptr ? nullptr : at<float>(plan.scratch.weights) + t * p.heads;
  }

  // Where scores of a row that sees every key of the tile may be stored as they come, a line every few hundred cycles:
  // stored all at once they would wait for memory. Null: not.
  float* in_place(const Keys& keys, int64_t t) const {
    const bool all = at<int32_t>(plan.scratch.low)[t] == 0 && at<int32_t>(plan.scratch.high)[t] == keys.count;
    const bool whole = keys.count == keys.end - keys.begin && keys.count % kLanes == 0;
    if (p.selects || p.scores_column != 1 || !all || !whole) return nullptr;
    return p.scores + row_offset(p.rows, p.scores_stride, first_row() + t) + keys.begin;
  }

  float* sums(int64_t a) const { return at<float>(plan.scratch.sums) + a * plan.sum_row; }

  // ---- What becomes of them -----------------------------------------------------------------------------------------

  // use(i, end, key): scores [i, end) are those of keys from `key` on, in a row.
  template <class Use>
  void for_each_run(const Keys& keys, int64_t t, const Use& use) const {
    const int high = at<int32_t>(plan.scratch.high)[t];
    for (int i = 0; keys.sparse && i < keys.count; ++i) {
      if (keys.id[i] >= row(t).begin && keys.id[i] < row(t).end) use(i, i + 1, keys.id[i]);
    }
    if (keys.sparse) return;
    for (int i = at<int32_t>(plan.scratch.low)[t]; i < high;) {
      int end = keys.count == keys.end - keys.begin ? high : i + 1;
      while (end < high && keys.place[end] == keys.place[end - 1] + 1) ++end;
      use(i, end, keys.begin + keys.place[i]);
      i = end;
    }
  }

  void keep(const Keys& keys, int64_t t, const float* scores) const {
    if (p.selects) {
      const Best<Isa> to = best(t);
      for_each_run(keys, t, [&](int i, int end, int64_t key) { to.add(scores, i, end, key - i); });
      return;
    }
    int64_t done = keys.begin;
    for_each_run(keys, t, [&](int i, int end, int64_t key) {
      clear(t, done, key);
      store(t, key, scores + i, end - i);
      done = key + end - i;
    });
    clear(t, done, keys.end);
  }

  void store(int64_t t, int64_t key, const float* scores, int n) const {
    float* const to = p.scores + row_offset(p.rows, p.scores_stride, first_row() + t) + key * p.scores_column;
    if (p.scores_column == 1) {
      for (int i = 0; i < n; i += kLanes) Isa::store_first(to + i, Isa::load(scores + i), n - i);
    } else {
      for (int i = 0; i < n; ++i) to[i * p.scores_column] = scores[i];
    }
  }

  void clear(int64_t t, int64_t begin, int64_t end) const {
    float* const to = p.scores + row_offset(p.rows, p.scores_stride, first_row() + t);
    for (int64_t i = begin; i < end; ++i) to[i * p.scores_column] = -INFINITY;
  }

  static void score(const Problem& p, const Plan& plan, const Task& task, char* scratch) {
    QsaScore{{p, plan, task, scratch}}.run();
  }

  static constexpr Kernel kernel() { return {score, Base::write, kLanes, Isa::kPair}; }
};

}  // namespace tessera::qsa_score

#endif  // TESSERA_OPS_QSA_SCORE_KERNEL_H_
