// Attention of single rows over lists of tokens: out[h] = sum_j softmax_j(scale q[h].k[j]) v[j] over the tokens listed.
//
// Neighbouring rows have other lists, so no two rows share packed keys: a row's G heads of a group are all there is to
// multiply a key with. For each 128 tokens of a list and each KV head:
//   S = Q K^T   2 D FLOP a key and head; keys are packed panel by panel, each used once, in L1
//   softmax     one pass over S, as everywhere
//   O += P V    2 Dv FLOP; values are read where they lie (tile/gather.h), and meanwhile the next tokens' keys and values
//               are fetched, line by line
// A token is looked up once for all KV heads, and its keys and values of all heads lie together in memory, so the heads of
// a token tile follow each other. AVX2, G = 12, D = 256: packing 128 keys takes a third of the time of multiplying them.
// Pages in the packed layout are read in place by fours: where a tile's tokens are runs of 4 from one page, keys need no
// transposing and two values are one load. A tile that has any other token is copied to rows first.
// Bytes: 2 (D + Dv) a token and KV head in 16 bits, against 4 G D FLOP: 12 FLOP a byte.
#ifndef TESSERA_OPS_TOKEN_ATTN_KERNEL_H_
#define TESSERA_OPS_TOKEN_ATTN_KERNEL_H_

#include <math.h>
#include <string.h>

#include "ops/token_attn/plan.h"
#include "ops/token_attn/tokens.h"
#include "tile/gate.h"
#include "tile/gather.h"
#include "tile/panel.h"
#include "tile/scores.h"
#include "tile/softmax.h"

namespace tessera::token_attn {

// In: element type of q, k, v and out. kExact: f32 accuracy.
template <class Isa, class In, bool kExact>
struct TokenAttn {
  using operand = typename Isa::operand;
  using vec = typename Isa::vec;
  using P = Panels<Isa>;
  using Ahead = PiecesAhead<Isa>;
  using S = TileScores<Isa, In>;
  using V = GatherValues<Isa, In>;
  using Softmax = OnlineSoftmax<Isa, kExact>;
  using Part = typename Softmax::Part;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kE = kPackedElements<In>;

  const Problem& p;
  const Plan& plan;
  const Task& task;
  const Row& row;
  char* base;     // of the workspace
  char* scratch;  // of the worker
  int o_vecs;
  float factor;  // raw scores to log2 units

  TokenAttn(const Problem& problem, const Plan& a_plan, const Task& a_task, char* workspace, int worker)
      : p(problem),
        plan(a_plan),
        task(a_task),
        row(problem.table[a_task.row]),
        base(workspace),
        scratch(workspace + a_plan.workers + static_cast<size_t>(worker) * a_plan.scratch.bytes),
        o_vecs(P::vecs(problem.dim_v)),
        factor(Softmax::log2_factor(problem.scale)) {}

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(scratch + offset);
  }
  int64_t first_head() const { return task.head * p.group; }
  int64_t heads() const { return (task.head_end - task.head) * p.group; }  // of q
  int64_t row_at(const View& v, int64_t h) const { return row_offset(p.rows, v.row, task.row) + h * v.head; }

  // ---- Tokens -------------------------------------------------------------------------------------------------------

  // Keys and values of tokens, of one KV head.
  struct Tokens {
    const In* k[kTokenTile];
    const In* v[kTokenTile];
    int count = 0;
    bool in_place = true;  // no copy is needed
  };

  // The next n tokens of the list, of KV head 0. They exist: the row's count says so.
  void take(TokenCursor* cursor, int64_t n, Tokens* tokens) const {
    const In* const k = static_cast<const In*>(p.k.data);
    const In* const v = static_cast<const In*>(p.v.data);
    tokens->count = 0;
    while (tokens->count < n && advance(cursor)) {
      tokens->k[tokens->count] = k + key_at<In>(*cursor);
      tokens->v[tokens->count++] = v + value_at<In>(*cursor);
    }
    tokens->in_place = !p.pages.packed || are_quads(*tokens);
  }
  // Whether they are runs of 4 whose keys lie side by side and whose values are pairs.
  bool are_quads(const Tokens& tokens) const {
    if (tokens.count % 4 != 0 || p.dim % kE != 0 || (kE > 1 && p.dim_v % kLanes != 0)) return false;
    for (int i = 0; i < tokens.count; i += 4) {
      const In* const* const k = tokens.k + i;
      const In* const* const v = tokens.v + i;
      const bool run = k[1] == k[0] + kE && k[2] == k[0] + 2 * kE && k[3] == k[0] + 3 * kE;
      const bool pairs = kE == 1 || (v[1] == v[0] + 1 && v[3] == v[2] + 1);
      if (!run || !pairs) return false;
    }
    return true;
  }
  void of_head(const Tokens& tokens, int64_t head, Tokens* to) const {
    to->count = tokens.count;
    to->in_place = tokens.in_place;
    for (int i = 0; i < tokens.count; ++i) {
      to->k[i] = tokens.k[i] + head * p.k.head;
      to->v[i] = tokens.v[i] + head * p.v.head;
    }
  }

  // Tokens of the packed layout as rows.
  void copy_rows(const Tokens& tokens, Tokens* to) const {
    const int64_t step = p.dim + p.dim_v;
    to->count = tokens.count;
    for (int i = 0; i < tokens.count; ++i) {
      In* const features = at<In>(plan.scratch.copied) + i * step;
      copy_key_units(tokens.k[i], p.k.token, 1, p.dim, features, step);
      for (int64_t d = 0; d < p.dim_v; ++d) features[p.dim + d] = tokens.v[i][d * kE];
      to->k[i] = features;
      to->v[i] = features + p.dim;
    }
  }

  // What tokens have in memory: keys and values row by row, or by fours and by pairs. Of keys in the packed layout that lie
  // in lines with those of other tokens, nothing.
  void fetch(const Tokens& tokens, Ahead* ahead) const {
    const bool packed = p.pages.packed;
    const int keys = packed && tokens.in_place ? 4 : 1;
    const int values = packed && tokens.in_place ? kE : 1;
    const int key_pieces = !packed || p.k.token == 4 * kE ? tokens.count / keys : 0;
    const int64_t element = static_cast<int64_t>(sizeof(In));
    const auto* const k = reinterpret_cast<const char* const*>(tokens.k);
    const auto* const v = reinterpret_cast<const char* const*>(tokens.v);
    ahead->pieces[0] = {k, keys, key_pieces, p.dim * (packed ? 4 : 1) * element};
    ahead->pieces[1] = {v, values, tokens.count / values, p.dim_v * (packed ? kE : 1) * element};
  }

  // ---- Rows of q, one for each head of the task ---------------------------------------------------------------------

  // A negative scale negates q, which is exact.
  void load_q() const {
    for (int64_t h = 0; h < heads(); ++h) {
      operand* const to = at<operand>(plan.scratch.q) + h * plan.q_row;
      S::load_row(static_cast<const In*>(p.q) + row_at(p.q_view, first_head() + h), static_cast<int>(p.dim), to);
      for (int64_t d = 0; p.scale < 0 && d < p.dim; ++d) to[d] = Isa::negate(to[d]);
    }
  }

  typename Softmax::Row state(int64_t h) const {
    return {at<float>(plan.scratch.m) + h, at<float>(plan.scratch.l) + h * kLanes,
            at<float>(plan.scratch.max) + h * kLanes, at<float>(plan.scratch.o) + h * plan.o_row};
  }
  void clear_state(int64_t h) const {
    Softmax::clear(state(h), o_vecs);
    Isa::store(state(h).max, Isa::set1(-INFINITY));
  }

  // The chunks that have been merged; `numbers` are m, l, max.
  static Part part_at(const float* numbers, float* o) { return {numbers[0], numbers[1], numbers[2], o}; }
  static void store_numbers(const Part& part, float* to) {
    to[0] = part.m;
    to[1] = part.l;
    to[2] = part.max;
  }
  float* sum_of(int64_t h) const { return at<float>(plan.scratch.sum) + h * 3; }
  Part sum_part(int64_t h) const { return part_at(sum_of(h), at<float>(plan.scratch.sum_o) + h * plan.o_row); }
  void clear_sum(int64_t h) const {
    store_numbers({-INFINITY, 0.0f, -INFINITY, nullptr}, sum_of(h));
    memset(sum_part(h).o, 0, static_cast<size_t>(plan.o_row) * sizeof(float));
  }
  void merge_into_sum(int64_t h, const Part& from) const {
    Part into = sum_part(h);
    Softmax::merge(&into, from, o_vecs);
    store_numbers(into, sum_of(h));
  }

  // What a chunk leaves of head h of q.
  float* partial(int64_t chunk, int64_t h) const {
    const int64_t slot = (task.row * plan.chunks + chunk) * p.kv_heads * p.group + h;
    return reinterpret_cast<float*>(base + plan.partial) + slot * plan.partial_floats;
  }

  // ---- Attention ----------------------------------------------------------------------------------------------------

  // Chunks [task.chunk, task.chunk_end), each of which ends in `fold`(head of the task).
  template <class Fold>
  void walk(const Fold& fold) const {
    const int64_t chunk = chunk_tokens(p, row);
    const int64_t end = task.chunk_end * chunk < row.count ? task.chunk_end * chunk : row.count;
    int64_t done = task.chunk * chunk;
    const auto piece = [&](int64_t from) {
      const int64_t chunk_end = (from / chunk + 1) * chunk;
      const int64_t left = (chunk_end < end ? chunk_end : end) - from;
      return left < kTokenTile ? left : kTokenTile;
    };
    TokenCursor cursor = tokens_of(p, task.row);
    for (int64_t i = 0; i < done && i < end; ++i) advance(&cursor);
    Tokens tokens[2];  // this tile's and the next one's
    Tokens now, next;  // the same of one head
    int which = 0;
    if (done < end) take(&cursor, piece(done), &tokens[0]);
    of_head(tokens[0], task.head, &now);
    while (done < end && tokens[which].count > 0) {  // a list that is written to meanwhile may run out of tokens
      done += tokens[which].count;
      tokens[1 - which].count = 0;
      if (done < end) take(&cursor, piece(done), &tokens[1 - which]);
      for (int64_t head = task.head; head < task.head_end; ++head) {
        const bool last = head + 1 == task.head_end;
        of_head(tokens[last ? 1 - which : which], last ? task.head : head + 1, &next);
        attend_head(now, next, (head - task.head) * p.group);
        now = next;
      }
      which = 1 - which;
      if (done % chunk != 0 && done != end) continue;
      for (int64_t h = 0; h < heads(); ++h) fold(h);
    }
  }

  // The rows of q of one KV head, [first, first + G) of the task's.
  void attend_head(const Tokens& given, const Tokens& next, int64_t first) const {
    Tokens copied;
    if (!given.in_place) copy_rows(given, &copied);
    const Tokens& tokens = given.in_place ? given : copied;
    const bool quads = p.pages.packed && given.in_place;
    const typename S::Keys keys = {tokens.k, tokens.count, 0, nullptr, 0, quads ? p.k.token : 0};
    Ahead ahead;
    fetch(next, &ahead);
    const typename V::Call values = {tokens.v, tokens.count, quads && kE > 1, &ahead};
    for (int64_t begin = 0; begin < p.group; begin += kGroupRows) {
      const int n = static_cast<int>(p.group - begin < kGroupRows ? p.group - begin : kGroupRows);
      const operand* q[kGroupRows];
      float* scores[kGroupRows];
      const operand* probs[kGroupRows];
      float* o[kGroupRows];
      for (int i = 0; i < n; ++i) {
        const int64_t h = first + begin + i;
        q[i] = at<operand>(plan.scratch.q) + h * plan.q_row;
        scores[i] = at<float>(plan.scratch.scores) + i * kTokenTile;
        o[i] = state(h).o;
        probs[i] = at<operand>(plan.scratch.probs) + i * kTokenTile;
      }
      S::multiply(keys, static_cast<int>(p.dim), tokens.count, begin == 0, p.group > kGroupRows, n, q, scores,
                  at<operand>(plan.scratch.packed));
      for (int i = 0; i < n; ++i) {
        Softmax::step(scores[i], const_cast<operand*>(probs[i]), tokens.count, P::vecs(tokens.count), factor,
                      state(first + begin + i), o_vecs);
      }
      V::add(values, static_cast<int>(p.dim_v), n, probs, o);
    }
  }

  // ---- Output -------------------------------------------------------------------------------------------------------

  void finish(int64_t h) const {
    const Part part = sum_part(h);
    In* const out = static_cast<In*>(p.out) + row_at(p.out_view, first_head() + h);
    Softmax::store(out, part.o, part.empty() ? 0.0f : 1.0f / part.l, static_cast<int>(p.dim_v));
    if (p.lse != nullptr) p.lse[row_at(p.lse_view, first_head() + h)] = part.lse();
    if (p.gate.data == nullptr) return;
    ApplyGate<Isa, In>::apply(p.gate, row_at(p.gate_view, first_head() + h), static_cast<int>(p.dim_v), out);
  }

  // ---- Tasks --------------------------------------------------------------------------------------------------------

  static void attend(const Problem& p, const Plan& plan, const Task& task, char* base, int worker) {
    const TokenAttn self(p, plan, task, base, worker);
    self.load_q();
    for (int64_t h = 0; h < self.heads(); ++h) {
      self.clear_state(h);
      self.clear_sum(h);
    }
    if (plan.split) {
      self.walk([](int64_t) {});
      for (int64_t h = 0; h < self.heads(); ++h) {
        const Part part = Softmax::part_of(self.state(h));
        float* const to = self.partial(task.chunk, self.first_head() + h);
        store_numbers(part, to);
        memcpy(to + 3, part.o, static_cast<size_t>(plan.o_row) * sizeof(float));
      }
      return;
    }
    self.walk([&](int64_t h) {
      self.merge_into_sum(h, Softmax::part_of(self.state(h)));
      self.clear_state(h);
    });
    for (int64_t h = 0; h < self.heads(); ++h) self.finish(h);
  }

  static void merge(const Problem& p, const Plan& plan, const Task& task, char* base, int worker) {
    const TokenAttn self(p, plan, task, base, worker);
    for (int64_t h = 0; h < self.heads(); ++h) {
      self.clear_sum(h);
      for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        float* const from = self.partial(chunk, self.first_head() + h);
        self.merge_into_sum(h, part_at(from, from + 3));
      }
      self.finish(h);
    }
  }

  static constexpr Kernel kernel() { return {attend, merge, kLanes, Isa::kPair}; }
};

}  // namespace tessera::token_attn

#endif  // TESSERA_OPS_TOKEN_ATTN_KERNEL_H_
