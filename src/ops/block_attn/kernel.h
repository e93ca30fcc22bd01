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
#include <string.h>

#include "ops/block_attn/plan.h"
#include "tile/direct.h"
#include "tile/gemm.h"
#include "tile/panel.h"
#include "tile/softmax.h"

namespace tessera::block_attn {

// In: element type of q, k, v and out. kExact: f32 accuracy.
template <class Isa, class In, bool kExact>
struct BlockAttn {
  using vec = typename Isa::vec;
  using operand = typename Isa::operand;
  using P = Panels<Isa>;
  using G = Gemm<Isa>;
  using Softmax = OnlineSoftmax<Isa, kExact>;
  using Direct = DirectScores<Isa, In>;
  static constexpr int kLanes = Isa::kLanes;

  const Problem& p;
  const Plan& plan;
  const Request& r;
  char* base;
  int64_t head;  // KV head
  int64_t tile;
  int64_t first_token;  // of the request
  int64_t tokens;
  int64_t first_list;
  int64_t lists;
  char* scratch;
  int o_vecs;
  float factor;  // |scale| * log2(e): raw scores to log2 units

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(scratch + offset);
  }

  BlockAttn(const Problem& problem, const Plan& a_plan, const Request& request, char* workspace, int64_t kv_head,
            int64_t a_tile, int worker)
      : p(problem), plan(a_plan), r(request), base(workspace), head(kv_head), tile(a_tile) {
    if (plan.tiles_per_list > 1) {  // an even share of one list's tokens
      first_list = tile / plan.tiles_per_list;
      const int64_t part = tile % plan.tiles_per_list;
      const int64_t list_begin = first_list * p.block_q;
      const int64_t left = r.seq.rows - list_begin;
      const int64_t size = left < p.block_q ? left : p.block_q;
      first_token = list_begin + part * size / plan.tiles_per_list;
      tokens = list_begin + (part + 1) * size / plan.tiles_per_list - first_token;
      lists = 1;
    } else {
      first_list = tile * plan.lists_per_tile;
      const int64_t left = r.lists - first_list;
      lists = left < plan.lists_per_tile ? left : plan.lists_per_tile;
      first_token = first_list * p.block_q;
      const int64_t end = (first_list + lists) * p.block_q;
      tokens = (end < r.seq.rows ? end : r.seq.rows) - first_token;
    }
    scratch = base + plan.workers + static_cast<size_t>(worker) * plan.scratch.bytes;
    o_vecs = P::vecs(p.dim_v);
    // A scale of zero would turn the -inf of absent maxima into NaN; the smallest normal number keeps every finite score
    // at zero just as well.
    const double log2e = 1.4426950408889634;
    const double magnitude = fabs(static_cast<double>(p.scale)) * log2e;
    factor = magnitude > 1.2e-38 ? static_cast<float>(magnitude) : 1.2e-38f;
  }

  // ---- Packed keys and values ----------------------------------------------------------------------------------------

  // The keys of a key tile that exist, in order.
  struct Keys {
    int64_t begin;  // where the tile begins
    int count;
    const In* k[kKeyTile];
    const In* v[kKeyTile];
    uint8_t place[kKeyTile];  // of each key, from `begin`
  };

  struct Packed {
    const operand* k;  // [dim steps][keys]
    const operand* v;  // [keys steps][dim_v]
    bool finite;       // all of v
  };

  static void locate(const Problem& p, const Plan& plan, const Request& r, int64_t head, int64_t block, int64_t piece,
                     Keys* keys) {
    keys->begin = block * p.block + piece * plan.key_tile;
    int64_t end = keys->begin + plan.key_tile;
    if (end > (block + 1) * p.block) end = (block + 1) * p.block;
    if (end > r.seq.keys) end = r.seq.keys;
    const int n = end > keys->begin ? static_cast<int>(end - keys->begin) : 0;
    keys->count = locate_keys(p.k, p.pages, r.seq, r.b, head, keys->begin, n, keys->k, keys->place);
    locate_keys(p.v, p.pages, r.seq, r.b, head, keys->begin, n, keys->v, keys->place);
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

  static void pack(const Problem& p, const Plan& plan, const Request& r, char* base, int64_t head, int64_t block) {
    const int64_t slot = slot_of(p, plan, r, base, head, block);
    for (int64_t piece = 0; piece < plan.tiles_per_block; ++piece) {
      Keys keys;
      locate(p, plan, r, head, block, piece, &keys);
      if (keys.count == 0) continue;
      operand* const k = packed_at(plan, base, slot + piece);
      P::pack_keys(keys.k, keys.count, static_cast<int>(p.dim), k);
      operand* const v = k + plan.packed_k_bytes / sizeof(operand);
      const bool finite =
          P::pack_values(keys.v, keys.count, static_cast<int>(plan.key_tile), static_cast<int>(p.dim_v), v);
      *(base + plan.finite + slot + piece) = finite ? 1 : 0;
    }
  }

  Packed packed_keys(int64_t block, int64_t piece) const {
    const int64_t slot = slot_of(p, plan, r, base, head, block) + piece;
    const operand* k = packed_at(plan, base, slot);
    return {k, k + plan.packed_k_bytes / sizeof(operand), *(base + plan.finite + slot) != 0};
  }

  // ---- Before the walk ---------------------------------------------------------------------------------------------------

  // Turns the tile's lists into one member mask per block.
  void read_lists() const {
    uint64_t* members = at<uint64_t>(plan.scratch.members);
    uint64_t* touched = at<uint64_t>(plan.scratch.touched);
    memset(touched, 0, static_cast<size_t>(used_words(r)) * sizeof(uint64_t));
    for (int64_t i = 0; i < lists; ++i) {
      const int32_t* ids = ids_of(p, r, head, first_list + i);
      for (int64_t w = 0; w < p.width; ++w) {
        const int64_t id = ids[w * p.ids_entry];
        if (id < 0 || id >= r.blocks) continue;
        const uint64_t bit = uint64_t{1} << (id % 64);
        if ((touched[id / 64] & bit) == 0) members[id] = 0;
        touched[id / 64] |= bit;
        members[id] |= uint64_t{1} << i;
      }
    }
  }

  // Copies the tile's rows of q, in (token, head) order, as operands; a negative scale negates them, which is exact.
  void load_q() const {
    operand* to = at<operand>(plan.scratch.q);
    const int dim = static_cast<int>(p.dim);
    constexpr int kWide = kLanes * Isa::kPair;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t g = 0; g < p.group; ++g) {
        const In* from = static_cast<const In*>(p.q) + row_at(p.q_stride, first_token + t, head * p.group + g);
        for (int d = 0; d < dim; d += kWide) Isa::store_unit(to + d, Isa::units(from + d, dim - d));
        if (p.scale < 0) {
          for (int d = 0; d < dim; ++d) to[d] = Isa::negate(to[d]);
        }
        to += plan.q_row;
      }
    }
    if (r.pack_once) return;
    for (int64_t list = 0; list < lists; ++list) {
      for (int64_t row = 0; row < list_rows(list); row += kGroupRows) {
        const int64_t left = list_rows(list) - row;
        const operand* rows[kGroupRows];
        for (int64_t i = 0; i < kGroupRows; ++i) rows[i] = q_row(first_row(list) + row + i);
        P::pack_keys(rows, static_cast<int>(left < kGroupRows ? left : kGroupRows), dim, panel_at(list, row));
      }
    }
  }

  const operand* q_row(int64_t row) const { return at<operand>(plan.scratch.q) + row * plan.q_row; }

  // Rows of the tile that follow list i.
  int64_t first_row(int64_t i) const { return lists == 1 ? 0 : i * p.block_q * p.group; }
  int64_t list_rows(int64_t i) const {
    const int64_t left = tokens * p.group - first_row(i);
    return lists == 1 || left < p.block_q * p.group ? left : p.block_q * p.group;
  }
  // The packed group of rows that begins at `row` of list i.
  operand* panel_at(int64_t i, int64_t row) const {
    return at<operand>(plan.scratch.panels) + (i * plan.panel_rows + row) * P::steps(p.dim) * Isa::kPair;
  }

  typename Softmax::Row row_state(int64_t row) const {
    return {at<float>(plan.scratch.m) + row, at<float>(plan.scratch.l) + row * kLanes,
            at<float>(plan.scratch.max) + row * kLanes, at<float>(plan.scratch.o) + row * plan.o_row};
  }

  // Offset of query t and head h in q and in the outputs.
  int64_t row_at(const Strides& s, int64_t t, int64_t h) const {
    return r.b * s.request + (r.seq.row + t) * s.token + h * s.head;
  }

  // ---- One key tile ----------------------------------------------------------------------------------------------------------

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

  // What the multiplications prefetch: scores the values of this tile, values the keys of the next.
  struct Fetch {
    Ahead values, next_keys;
  };

  // The row whose scores lie in `slot` of the scratch.
  void add_row(int32_t row, int32_t limit, int64_t slot, Group* g) const {
    g->rows[g->n] = row;
    g->limits[g->n] = limit;
    g->scores[g->n] = score_row(slot);
    g->probs[g->n] = at<operand>(plan.scratch.probs) + slot * plan.score_row;
    g->o[g->n] = at<float>(plan.scratch.o) + row * plan.o_row;
    g->most = limit > g->most ? limit : g->most;
    g->least = limit < g->least ? limit : g->least;
    ++g->n;
  }
  float* score_row(int64_t slot) const { return at<float>(plan.scratch.scores) + slot * plan.score_row; }

  // rows, limits: the rows of all lists that see at least one key of the tile, and how many each sees.
  void attend_packed(const Keys& keys, const Packed& packed, const int32_t* rows, const int32_t* limits,
                     int64_t count) const {
    const int64_t groups = (count + kGroupRows - 1) / kGroupRows;
    const int dim_steps = P::steps(p.dim);
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t begin = i * count / groups;
      Group g;
      const operand* q_rows[kGroupRows];
      for (int64_t row = begin; row < (i + 1) * count / groups; ++row) {
        q_rows[g.n] = q_row(rows[row]);
        add_row(rows[row], limits[row], g.n, &g);
      }
      G::all(packed.k, P::vecs(keys.count), dim_steps, dim_steps, P::vecs(g.most), false, g.n, q_rows, g.scores,
             packed.v);
      weigh(keys, &packed, g, nullptr);
    }
  }

  // The same for the rows of list i, against keys where they lie. They join the group, which is weighed when it is full.
  void attend_direct(const Keys& keys, int64_t list, const int32_t* rows, const int32_t* limits, int64_t count,
                     Fetch* fetch, Group* g) const {
    for (int64_t i = 0; i < count;) {
      const int64_t begin = (rows[i] - first_row(list)) / kGroupRows * kGroupRows;
      const int64_t left = list_rows(list) - begin;
      const int n = static_cast<int>(left < kGroupRows ? left : kGroupRows);
      if (g->slots + n > kGroupRows) {
        weigh(keys, nullptr, *g, &fetch->next_keys);
        *g = {};
      }
      int most = 0;
      for (; i < count && rows[i] < first_row(list) + begin + n; ++i) {
        add_row(rows[i], limits[i], g->slots + rows[i] - first_row(list) - begin, g);
        most = limits[i] > most ? limits[i] : most;
      }
      float* scores[kGroupRows];
      for (int slot = 0; slot < n; ++slot) scores[slot] = score_row(g->slots + slot);
      Direct::scores(keys.k, most, static_cast<int>(p.dim), panel_at(list, begin), n, at<char>(plan.scratch.direct),
                     scores, &fetch->values);
      g->slots += n;
    }
  }

  // Rows that lie one behind the other.
  static Ahead rows_ahead(const In* const* rows, int count, int64_t dim) {
    if (count == 0 || rows[count - 1] - rows[0] != (count - 1) * dim) return {};
    return {reinterpret_cast<const char*>(rows[0]), reinterpret_cast<const char*>(rows[count - 1] + dim)};
  }

  // Turns scores into probabilities and adds the values they weigh, panel by panel: packed ones, or (null) each packed
  // here into the nearest cache.
  void weigh(const Keys& keys, const Packed* packed, const Group& g, Ahead* ahead) const {
    const int s_vecs = P::vecs(g.most);
    for (int i = 0; i < g.n; ++i) {
      Softmax::step(g.scores[i], const_cast<operand*>(g.probs[i]), g.limits[i], s_vecs, factor, row_state(g.rows[i]),
                    o_vecs);
    }
    operand* const buffer = at<operand>(plan.scratch.values);
    for (int i = 0; i < P::count(o_vecs); ++i) {
      const int first = P::begin(o_vecs, i);
      const int width = P::begin(o_vecs, i + 1) - first;
      const operand* panel = buffer;
      bool finite = true;
      Ahead next = {};
      if (packed == nullptr) {
        finite = pack_panel(keys, g.most, i);
      } else {
        panel = P::at(packed->v, P::steps(plan.key_tile), first);
        finite = packed->finite;
        next = G::panel_at(
            i + 1 < P::count(o_vecs) ? panel + width * kLanes * P::steps(plan.key_tile) * Isa::kPair : packed->k, width,
            P::steps(g.most));
      }
      if (finite || g.least == (packed == nullptr ? g.most : keys.count)) {
        add_panel(panel, i, P::steps(g.most), g, 0, g.n, packed == nullptr ? ahead : &next);
      } else {
        add_panel_hiding(keys, i, g);
      }
    }
  }

  bool pack_panel(const Keys& keys, int count, int i) const {
    return P::pack_values_panel(keys.v, count, count, static_cast<int>(p.dim_v), i, at<operand>(plan.scratch.values));
  }

  // Adds panel i of the values to rows [begin, end) of the group.
  void add_panel(const operand* panel, int i, int steps, const Group& g, int begin, int end, Ahead* ahead) const {
    const int first = P::begin(o_vecs, i);
    const int width = P::begin(o_vecs, i + 1) - first;
    G::one(panel, width, steps, width, true, end - begin, g.probs + begin, g.o + begin, first * kLanes, ahead);
  }

  // The slow, exact way where an invisible value may be NaN or infinite: 0 * NaN would reach the row, so rows that see
  // equally many keys get values packed up to there.
  void add_panel_hiding(const Keys& keys, int i, const Group& g) const {
    for (int begin = 0; begin < g.n;) {
      int end = begin + 1;
      while (end < g.n && g.limits[end] == g.limits[begin]) ++end;
      pack_panel(keys, g.limits[begin], i);
      Ahead nothing = {};
      add_panel(at<operand>(plan.scratch.values), i, P::steps(g.limits[begin]), g, begin, end, &nothing);
      begin = end;
    }
  }

  // ---- The walk ----------------------------------------------------------------------------------------------------------------

  // Works through the union of the lists; chunk < 0: all chunks, merging each finished one into the row's sum.
  void walk(int64_t chunk) const {
    int64_t done[kTileLists] = {};  // key tiles of each list so far
    Keys keys[2];                   // this tile's and the next one's
    int now = 0;
    Cursor cursor(*this);
    bool more = cursor.advance();
    if (more) cursor.locate(&keys[0]);
    while (more) {
      const int64_t block = cursor.block;
      const int64_t piece = cursor.piece;
      more = cursor.advance();
      if (more) cursor.locate(&keys[1 - now]);
      visit(block, piece, keys[now], more ? &keys[1 - now] : nullptr, chunk, done);
      now = 1 - now;
    }
  }

  // The key tiles of the union, ascending.
  struct Cursor {
    const BlockAttn& attn;
    const uint64_t* touched;
    int64_t word = -1;
    uint64_t bits = 0;
    int64_t block = 0;
    int64_t piece;

    explicit Cursor(const BlockAttn& a)
        : attn(a), touched(a.at<uint64_t>(a.plan.scratch.touched)), piece(a.plan.tiles_per_block - 1) {}

    bool advance() {
      if (++piece < attn.plan.tiles_per_block) return true;
      piece = 0;
      while (bits == 0) {
        if (++word == used_words(attn.r)) return false;
        bits = touched[word];
      }
      block = word * 64 + __builtin_ctzll(bits);
      bits &= bits - 1;
      return true;
    }
    void locate(Keys* keys) const { BlockAttn::locate(attn.p, attn.plan, attn.r, attn.head, block, piece, keys); }
  };

  void visit(int64_t block, int64_t piece, const Keys& keys, const Keys* next, int64_t chunk, int64_t* done) const {
    if (keys.count == 0) return;
    const uint64_t members = at<uint64_t>(plan.scratch.members)[block];
    const int64_t* visible = at<int64_t>(plan.scratch.visible);
    int32_t* rows = at<int32_t>(plan.scratch.rows);
    int32_t* limits = at<int32_t>(plan.scratch.limits);
    int64_t count = 0;
    Group group;
    Fetch fetch = {rows_ahead(keys.v, keys.count, p.dim_v), {}};
    if (next != nullptr) fetch.next_keys = rows_ahead(next->k, next->count, p.dim);
    for (int64_t i = 0; i < lists; ++i) {
      if ((members >> i & 1) == 0) continue;
      const int64_t at_chunk = done[i] / plan.chunk_tiles;
      const bool starts = done[i] % plan.chunk_tiles == 0;
      ++done[i];
      if (chunk >= 0 && at_chunk != chunk) continue;
      const int64_t begin = count;
      const int64_t row_end = first_row(i) + list_rows(i);
      for (int64_t row = first_row(i); row < row_end; row += p.group) {
        const int sees = places_before(keys.place, keys.count, visible[row / p.group] - keys.begin);
        if (sees == 0) continue;
        for (int64_t g = 0; g < p.group; ++g, ++count) {
          rows[count] = static_cast<int32_t>(row + g);
          limits[count] = sees;
          if (chunk < 0 && starts && at_chunk > 0) fold(rows[count]);
        }
      }
      if (!r.pack_once) attend_direct(keys, i, rows + begin, limits + begin, count - begin, &fetch, &group);
    }
    if (!r.pack_once) {
      if (group.n > 0) weigh(keys, nullptr, group, &fetch.next_keys);
    } else if (count > 0) {
      attend_packed(keys, packed_keys(block, piece), rows, limits, count);
    }
  }

  // ---- States ----------------------------------------------------------------------------------------------------------------------

  typename Softmax::Part part_of(int64_t row) const {
    const typename Softmax::Row state = row_state(row);
    return {*state.m, Isa::reduce_add(Isa::load(state.l)), Isa::reduce_max(Isa::load(state.max)), state.o};
  }
  // The merged chunks of a row; numbers are m, l, max.
  static typename Softmax::Part part_at(const float* numbers, float* o) {
    return {numbers[0], numbers[1], numbers[2], o};
  }

  void clear_sum(int64_t row) const {
    float* sum = at<float>(plan.scratch.sum) + row * 3;
    sum[0] = -INFINITY;
    sum[1] = 0.0f;
    sum[2] = -INFINITY;
    memset(at<float>(plan.scratch.sum_o) + row * plan.o_row, 0, static_cast<size_t>(plan.o_row) * sizeof(float));
  }
  void merge_into_sum(int64_t row, const typename Softmax::Part& from) const {
    float* sum = at<float>(plan.scratch.sum) + row * 3;
    typename Softmax::Part into = part_at(sum, at<float>(plan.scratch.sum_o) + row * plan.o_row);
    Softmax::merge(&into, from, o_vecs);
    sum[0] = into.m;
    sum[1] = into.l;
    sum[2] = into.max;
  }
  // Ends a row's chunk and begins the next.
  void fold(int64_t row) const {
    merge_into_sum(row, part_of(row));
    clear_row(row);
  }
  void clear_row(int64_t row) const {
    const typename Softmax::Row state = row_state(row);
    Softmax::clear(state, o_vecs);
    Isa::store(state.max, Isa::set1(-INFINITY));
  }

  // ---- Output -----------------------------------------------------------------------------------------------------------------------

  void finish_row(int64_t row, const typename Softmax::Part& part) const {
    const int64_t t = first_token + row / p.group;
    const int64_t h = head * p.group + row % p.group;
    const bool empty = part.m == -INFINITY && part.l == 0.0f;
    if (p.o != nullptr) {
      finish_state(t, h, part, empty);
      return;
    }
    In* out = static_cast<In*>(p.out) + row_at(p.out_stride, t, h);
    store_row(out, part.o, empty ? 0.0f : 1.0f / part.l);
    if (p.lse != nullptr) {
      const double ln2 = 0.6931471805599453;
      p.lse[row_at(p.lse_stride, t, h)] =
          empty ? -INFINITY : static_cast<float>(static_cast<double>(part.m) * ln2 + log(static_cast<double>(part.l)));
    }
  }

  // l and o are brought from the reference m to the true maximum.
  void finish_state(int64_t t, int64_t h, const typename Softmax::Part& part, bool empty) const {
    const double to_max = static_cast<double>(part.m) - static_cast<double>(part.max) * factor;
    const float weight = empty ? 0.0f : static_cast<float>(::exp2(to_max));
    store_row(p.o + row_at(p.o_stride, t, h), part.o, weight);
    p.l[row_at(p.l_stride, t, h)] = part.l * weight;
    p.m[row_at(p.m_stride, t, h)] = empty ? -INFINITY : part.max * fabsf(p.scale);
  }

  template <class Out>
  void store_row(Out* out, const float* o, float weight) const {
    const int dim = static_cast<int>(p.dim_v);
    for (int d = 0; d < dim; d += kLanes) {
      Isa::store_first(out + d, Isa::mul(Isa::load(o + d), Isa::set1(weight)), dim - d);
    }
  }

  // ---- Tasks ---------------------------------------------------------------------------------------------------------------------------

  float* partial(int64_t chunk) const {
    const int64_t slot = (r.first_tile * p.kv_heads + head * r.tiles + tile) * plan.max_chunks + chunk;
    return reinterpret_cast<float*>(base + plan.partial + static_cast<size_t>(slot) * plan.partial_bytes);
  }
  int64_t partial_row() const { return plan.o_row + 3; }

  static void attend(const Problem& p, const Plan& plan, const Request& r, char* base, int64_t head, int64_t tile,
                     int64_t chunk, int worker) {
    const BlockAttn self(p, plan, r, base, head, tile, worker);
    const int64_t rows = self.tokens * p.group;
    const bool folds = !plan.split && plan.max_chunks > 1;
    self.read_lists();
    self.load_q();
    for (int64_t t = 0; t < self.tokens; ++t) {
      self.template at<int64_t>(plan.scratch.visible)[t] = visible_keys(r.seq, p.causal, self.first_token + t);
    }
    for (int64_t row = 0; row < rows; ++row) {
      self.clear_row(row);
      if (folds) self.clear_sum(row);
    }
    self.walk(plan.split ? chunk : -1);
    for (int64_t row = 0; row < rows; ++row) {
      const typename Softmax::Part part = self.part_of(row);
      if (plan.split) {
        float* to = self.partial(chunk) + row * self.partial_row();
        to[0] = part.m;
        to[1] = part.l;
        to[2] = part.max;
        memcpy(to + 3, part.o, static_cast<size_t>(plan.o_row) * sizeof(float));
      } else if (folds) {
        self.merge_into_sum(row, part);
        self.finish_row(row, part_at(self.template at<float>(plan.scratch.sum) + row * 3,
                                     self.template at<float>(plan.scratch.sum_o) + row * plan.o_row));
      } else {
        self.finish_row(row, part);
      }
    }
  }

  static void merge(const Problem& p, const Plan& plan, const Request& r, char* base, int64_t head, int64_t tile,
                    int worker) {
    const BlockAttn self(p, plan, r, base, head, tile, worker);
    for (int64_t row = 0; row < self.tokens * p.group; ++row) {
      self.clear_sum(row);
      for (int64_t chunk = 0; chunk < plan.max_chunks; ++chunk) {
        float* from = self.partial(chunk) + row * self.partial_row();
        self.merge_into_sum(row, part_at(from, from + 3));
      }
      self.finish_row(row, part_at(self.template at<float>(plan.scratch.sum) + row * 3,
                                   self.template at<float>(plan.scratch.sum_o) + row * plan.o_row));
    }
  }

  static constexpr Kernel kernel() {
    return {pack, attend, merge, kLanes, Isa::kPair, Isa::kTileRows, kLanes * Isa::kVecs, Direct::scratch_bytes};
  }
};

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_KERNEL_H_
