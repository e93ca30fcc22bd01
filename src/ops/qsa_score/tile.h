// A tile of rows of one request: what a task has of it, where its keys lie, and its lists of the best of them.
#ifndef TESSERA_OPS_QSA_SCORE_TILE_H_
#define TESSERA_OPS_QSA_SCORE_TILE_H_

#include <math.h>

#include "ops/expand_blocks/expand.h"
#include "ops/qsa_score/plan.h"
#include "tile/best.h"

namespace tessera::qsa_score {

// In: element type of q and k.
template <class Isa, class In>
struct Tile {
  const Problem& p;
  const Plan& plan;
  const Task& task;
  char* scratch;

  // The part of a key tile that exists: all of it, but for keys behind invalid pages.
  struct Keys {
    int64_t begin, end;
    const In* row[kKeyTile];
    uint8_t place[kKeyTile];  // key `begin` + place[i]
    int32_t id[kKeyTile];
    bool sparse;  // key id[i], whether a row sees it or not
    int count;
  };

  int64_t first_row() const { return tile_begin(p, task.tile); }
  int64_t rows() const { return tile_end(p, task.tile) - first_row(); }
  const Row& row(int64_t t) const { return p.table[first_row() + t]; }
  Best<Isa> best(int64_t t) const { return {p.topk, plan.best_capacity, NAN, task.best + t * plan.best_bytes}; }

  // Keys [begin, end) of the row's request. Those of a request without pages are counted from its first on.
  void locate(const Row& r, int64_t begin, int64_t end, Keys* keys) const {
    keys->begin = begin;
    keys->end = end;
    keys->count = locate_keys(p.k, p.pages, Sequence{}, r.request, 0, begin, static_cast<int>(end - begin), keys->row,
                              keys->place);
  }

  // ---- Lists --------------------------------------------------------------------------------------------------------

  // The keys that a row sees, where these are not more than it keeps.
  void list_all(const Row& r, const Best<Isa>& list) const {
    list.clear();
    Keys keys;
    for (int64_t begin = r.begin; begin < r.end; begin += kKeyTile) {
      locate(r, begin, begin + kKeyTile < r.end ? begin + kKeyTile : r.end, &keys);
      for (int i = 0; i < keys.count; ++i) list.append(static_cast<int32_t>(begin + keys.place[i]));
    }
  }

  // The best keys of a row from those of its chunks.
  void merge(int64_t t, const char* chunks, size_t stride, const Best<Isa>& list) const {
    list.clear();
    for (int64_t c = 0; c < plan.chunks; ++c) {
      const char* data = chunks + static_cast<size_t>(c) * stride + t * plan.best_bytes;
      list.merge({p.topk, plan.best_capacity, NAN, const_cast<char*>(data)});
    }
    list.reduce();
  }

  void write_list(int64_t t, const Best<Isa>& list) const {
    const int64_t r = first_row() + t;
    const int64_t count = list.head()->count;
    if (p.ids != nullptr) {
      int32_t* const to = p.ids + row_offset(p.rows, p.ids_stride, r);
      for (int64_t i = 0; i < p.topk; ++i) to[i * p.ids_entry] = i < count ? list.ids()[i] : -1;
    }
    if (p.tokens != nullptr) {
      int32_t* const to = p.tokens + row_offset(p.rows, p.tokens_stride, r);
      const int64_t width = p.topk * p.visibility.block + p.visibility.block - 1;
      expand_blocks::expand_row(list.ids(), 1, count, row(t).position, p.visibility.block, to, p.tokens_entry, width);
    }
  }

  static void write(const Problem& p, const Plan& plan, int64_t tile, const char* chunks, size_t stride,
                    char* scratch) {
    const Task task = {tile, 0, 0, nullptr, nullptr};
    const Tile self{p, plan, task, scratch};
    const Best<Isa> list = {p.topk, plan.best_capacity, NAN, scratch + plan.scratch.list};
    for (int64_t t = 0; t < self.rows(); ++t) {
      if (needs_scores(p, self.row(t))) {
        self.merge(t, chunks, stride, list);
      } else {
        self.list_all(self.row(t), list);
      }
      self.write_list(t, list);
    }
  }
};

}  // namespace tessera::qsa_score

#endif  // TESSERA_OPS_QSA_SCORE_TILE_H_
