// A key tile, at most 128 keys of one block: which of them exist, where they lie, and K and V in the form that the
// micro-kernel reads. That is, by request (Request::source):
//   kPackOnce  panels that every tile of the call shares, packed into the workspace before the attention
//   kInPlace   a cache in the packed layout whose pages are panels already
//   kDirect    neither: rows in memory. K is read where it lies (tile/direct.h), V is packed panel by panel
// Pages of the packed layout that are not panels for this ISA are first copied to rows.
#ifndef TESSERA_OPS_BLOCK_ATTN_KEYS_H_
#define TESSERA_OPS_BLOCK_ATTN_KEYS_H_

#include "core/packed_layout.h"
#include "ops/block_attn/plan.h"
#include "tile/gemm.h"
#include "tile/panel.h"

namespace tessera::block_attn {

// The keys that exist, in order.
template <class In>
struct Keys {
  int64_t begin;  // where the tile begins
  int count;
  uint8_t place[kKeyTile];  // of each key, from `begin`
  const In* k[kKeyTile];
  const In* v[kKeyTile];
};

// A matrix in panels. Those of a page lie side by side: `step` is the distance of two steps of one panel.
template <class Isa>
struct Matrix {
  using operand = typename Isa::operand;
  using P = Panels<Isa>;

  const operand* data;
  int steps;     // that were packed
  int64_t step;  // in elements; 0: one panel after the other

  // The panel of vectors [first, first + width).
  const operand* panel(int first) const {
    return step == 0 ? P::at(data, steps, first) : data + static_cast<int64_t>(first) * Isa::kLanes * Isa::kPair;
  }
  int64_t stride(int width) const { return step == 0 ? static_cast<int64_t>(width) * Isa::kLanes * Isa::kPair : step; }
};

template <class Isa>
struct Packed {
  Matrix<Isa> k;  // [dim steps][keys]
  Matrix<Isa> v;  // [keys steps][dim_v]
  bool finite;    // all of v
};

// What the multiplications prefetch where K and V come from memory and not from packed panels: scores the values of this
// tile, values the keys of the next.
struct Fetch {
  Ahead values, next_keys;
};

template <class Isa, class In>
struct KeyTiles {
  using operand = typename Isa::operand;
  using P = Panels<Isa>;
  static constexpr int kE = kPackedElements<In>;

  // `rows`: where to copy a page of the packed layout, unless it is read in place.
  static void locate(const Problem& p, const Plan& plan, const Request& r, int64_t head, int64_t block, int64_t piece,
                     In* rows, Keys<In>* keys) {
    keys->begin = block * p.block + piece * plan.key_tile;
    int64_t end = keys->begin + plan.key_tile;
    if (end > (block + 1) * p.block) end = (block + 1) * p.block;
    if (end > r.seq.keys) end = r.seq.keys;
    const int n = end > keys->begin ? static_cast<int>(end - keys->begin) : 0;
    if (!p.pages.packed) {
      keys->count = locate_keys(p.k, p.pages, r.seq, r.b, head, keys->begin, n, keys->k, keys->place);
      locate_keys(p.v, p.pages, r.seq, r.b, head, keys->begin, n, keys->v, keys->place);
    } else if (r.source == Source::kInPlace) {
      locate_page(p, r, head, n, keys);
    } else {
      copy_rows(p, r, head, n, rows, keys);
    }
  }

  static void pack(const Problem& p, const Plan& plan, const Request& r, char* base, int64_t head, int64_t block,
                   int worker) {
    const int64_t slot = slot_of(p, plan, r, base, head, block);
    for (int64_t piece = 0; piece < plan.tiles_per_block; ++piece) {
      Keys<In> keys;
      char* const scratch = base + plan.workers + static_cast<size_t>(worker) * plan.scratch.bytes;
      locate(p, plan, r, head, block, piece, reinterpret_cast<In*>(scratch + plan.scratch.copied), &keys);
      if (keys.count == 0) continue;
      operand* const k = packed_at(plan, base, slot + piece);
      P::pack_keys(keys.k, keys.count, static_cast<int>(p.dim), k);
      operand* const v = k + plan.packed_k_bytes / sizeof(operand);
      const bool finite =
          P::pack_values(keys.v, keys.count, static_cast<int>(plan.key_tile), static_cast<int>(p.dim_v), v);
      *(base + plan.finite + slot + piece) = finite ? 1 : 0;
    }
  }

  // Of a request that packs once or whose pages are panels.
  static Packed<Isa> packed(const Problem& p, const Plan& plan, const Request& r, char* base, int64_t head,
                            int64_t block, int64_t piece, const Keys<In>& keys) {
    const int dim_steps = P::steps(p.dim);
    const int key_steps = P::steps(plan.key_tile);
    if (r.source == Source::kInPlace) {
      if constexpr (kSameType<In, operand>)
        return {{keys.k[0], dim_steps, p.k.token}, {keys.v[0], key_steps, p.v.token}, false};
    }
    const int64_t slot = slot_of(p, plan, r, base, head, block) + piece;
    const operand* k = packed_at(plan, base, slot);
    return {{k, dim_steps, 0},
            {k + plan.packed_k_bytes / sizeof(operand), key_steps, 0},
            *(base + plan.finite + slot) != 0};
  }

  // `next`: null if there is none.
  static Fetch fetch(const Problem& p, const Request& r, const Keys<In>& keys, const Keys<In>* next) {
    Fetch fetch = {};
    if (r.source == Source::kDirect) {
      fetch.values = rows_ahead(keys.v, keys.count, p.dim_v);
      if (next != nullptr) fetch.next_keys = rows_ahead(next->k, next->count, p.dim);
    } else if (r.source == Source::kInPlace) {
      fetch.values = page_ahead(keys.v[0], P::steps(keys.count) * p.v.token);
      if (next != nullptr && next->count > 0) fetch.next_keys = page_ahead(next->k[0], P::steps(p.dim) * p.k.token);
    }
    return fetch;
  }

  // Copies the n keys to rows.
  static void copy_rows(const Problem& p, const Request& r, int64_t head, int n, In* rows, Keys<In>* keys) {
    const int64_t step = p.dim + p.dim_v;
    keys->count = copy_packed_keys(p.k, p.pages, r.b, head, keys->begin, n, p.dim, rows, step, keys->k, keys->place);
    copy_packed_values(p.v, p.pages, r.b, head, keys->begin, n, p.dim_v, rows + p.dim, step, keys->v);
  }

 private:
  // Rows that lie one behind the other.
  static Ahead rows_ahead(const In* const* rows, int count, int64_t dim) {
    if (count == 0 || rows[count - 1] - rows[0] != (count - 1) * dim) return {};
    return page_ahead(rows[0], count * dim);
  }
  static Ahead page_ahead(const In* data, int64_t elements) {
    return {reinterpret_cast<const char*>(data), reinterpret_cast<const char*>(data + elements)};
  }

  // Where a used block's packed pieces begin, counted in key tiles.
  static int64_t slot_of(const Problem& p, const Plan& plan, const Request& r, const char* base, int64_t head,
                         int64_t block) {
    const int64_t word = first_word(p, r, head) + block / 64;
    const uint64_t used = reinterpret_cast<const uint64_t*>(base + plan.used)[word];
    const uint64_t before = used & ((uint64_t{1} << (block % 64)) - 1);
    const int64_t rank = reinterpret_cast<const int32_t*>(base + plan.rank)[word] + __builtin_popcountll(before);
    return (r.first_slot * p.kv_heads + head * r.slots + rank) * plan.tiles_per_block;
  }
  static operand* packed_at(const Plan& plan, char* base, int64_t slot) {
    const size_t bytes = plan.packed_k_bytes + plan.packed_v_bytes;
    return reinterpret_cast<operand*>(base + plan.packed + static_cast<size_t>(slot) * bytes);
  }

  // All n keys lie in one page: k[0] and v[0] point to the tile's part of it, and the rest of them is not used.
  static void locate_page(const Problem& p, const Request& r, int64_t head, int n, Keys<In>* keys) {
    keys->count = 0;
    if (n == 0) return;
    const PageRun run = page_run(p.pages, r.b, keys->begin);
    if (run.page < 0) return;
    keys->count = n;
    keys->k[0] = static_cast<const In*>(p.k.data) + run.page * p.k.page + head * p.k.head + run.slot * kE;
    keys->v[0] = static_cast<const In*>(p.v.data) + run.page * p.v.page + head * p.v.head + run.slot / kE * p.v.token;
    for (int i = 0; i < n; ++i) keys->place[i] = static_cast<uint8_t>(i);
  }
};

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_KEYS_H_
