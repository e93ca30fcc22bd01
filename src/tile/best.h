// The K best of a stream of scores, without storing the stream: a list of candidates in the order of their ids, and a bar
// that a new score must pass. When the list is full, the best K stay and the bar rises to the worst of them.
//
// Preference: higher first, -0 equal to +0, NaN below every number, equal ones by lower id. Scores come by increasing id,
// so one that equals the bar comes too late. Ranks are integers that order like the preference.
//
// Cost: some six instructions for each vector of scores, without a branch that depends on them; and for each 2 K that pass
// the bar (K ln(N/K) of N scores in random order) a bisection of the K-th best: at most 32 counts over 3 K integers, which
// compilers vectorise, 10,000 cycles at K = 512 with 8 lanes. The worst order, ascending, costs 10 cycles a score.
#ifndef TESSERA_TILE_BEST_H_
#define TESSERA_TILE_BEST_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>

namespace tessera {

// At the beginning of the memory of a list; scores and ids follow.
struct BestHead {
  int64_t count;
  int64_t ranked;  // of the entries; the others hold scores yet
  int64_t bound;   // a rank that no entry is below, and that new ones must exceed
  float bar;       // scores above this may do so; NaN: any may
};

// ---- For plans. Static, so that files built with ISA flags keep their own copies. ----

// Entries of a list of the best `keep` among `scores` that come up to `run` at a time, a vector included. The fuller it may
// get, the less often it is cut down.
static inline int64_t best_capacity(int64_t keep, int64_t scores, int64_t run) {
  return (keep < scores / 3 ? 3 * keep : scores) + run;
}
static inline int64_t best_bytes(int64_t capacity) {
  const int64_t bytes = static_cast<int64_t>(sizeof(BestHead)) + 8 * capacity;
  return (bytes + 63) / 64 * 64;
}

template <class Isa>
struct Best {
  using vec = typename Isa::vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int32_t kNanRank = INT32_MIN;

  int64_t keep;      // K
  int64_t capacity;  // at least K + the scores of one add() + kLanes
  float least;       // scores of -inf do not count (-inf), or they do (NaN)
  char* data;        // a BestHead, then `capacity` scores and as many ids

  BestHead* head() const { return reinterpret_cast<BestHead*>(data); }
  float* scores() const { return reinterpret_cast<float*>(data + sizeof(BestHead)); }
  int32_t* ids() const { return reinterpret_cast<int32_t*>(scores() + capacity); }

  void clear() const { *head() = {0, 0, kNanRank, NAN}; }

  // Scores of ids first_id + i for i in [begin, end), followed by anything up to a whole vector.
  void add(const float* from, int begin, int end, int64_t first_id) const {
    BestHead* const h = head();
    if (h->count + (end - begin) + kLanes > capacity) reduce();
    const bool open = h->bar != h->bar;
    const vec bar = Isa::set1(open ? least : h->bar);
    float* const to = scores();
    int32_t* const id = ids();
    int64_t n = h->count;
    for (int i = begin; i < end; i += kLanes) {
      const vec x = Isa::load(from + i);
      unsigned passes = open ? Isa::not_at_most(x, bar) : Isa::greater(x, bar);
      if (end - i < kLanes) passes &= (1u << (end - i)) - 1;
      n += Isa::store_chosen(to + n, id + n, x, static_cast<int32_t>(first_id + i), passes);
    }
    h->count = n;
  }

  // One more id, for lists that are not to be reduced.
  void append(int32_t id) const {
    scores()[head()->count] = 0.0f;
    ids()[head()->count++] = id;
  }

  // All of another list, whose ids are higher. Into a list of nothing else.
  void merge(const Best& other) const {
    BestHead* const h = head();
    const int32_t* const from = other.rank_all();
    for (int64_t i = 0; i < other.head()->count; ++i) {
      if (h->count == capacity) reduce();
      rank_all()[h->count] = from[i];
      ids()[h->count] = other.ids()[i];
      h->ranked = ++h->count;
    }
  }

  // Leaves the best `keep`, in the order of their ids.
  void reduce() const {
    BestHead* const h = head();
    if (h->count <= keep) return;
    int32_t* const ranks = rank_all();
    int32_t most = kNanRank;
    for (int64_t i = 0; i < h->count; ++i) most = ranks[i] > most ? ranks[i] : most;
    int64_t low = h->bound;  // at least `keep` ranks are not below it
    int64_t high = most;     // fewer are above it
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      const int64_t count = at_least(ranks, static_cast<int32_t>(middle));
      if (count >= keep) low = middle;
      if (count == keep) break;
      if (count < keep) high = middle - 1;
    }
    keep_from(ranks, static_cast<int32_t>(low));
  }

 private:
  static int32_t rank(int32_t bits) {
    const int32_t r = bits ^ ((bits >> 31) & INT32_MAX);
    const int32_t number = r == -1 ? 0 : r;  // -0 becomes +0
    return (bits & INT32_MAX) > 0x7f800000 ? kNanRank : number;
  }
  // The score of a rank, or one just below: -0 has none of its own. NaN below the numbers.
  static float score(int32_t rank) {
    if (rank == -1) rank = -2;
    const int32_t bits = rank ^ ((rank >> 31) & INT32_MAX);
    float score;
    __builtin_memcpy(&score, &bits, sizeof score);
    return score;
  }

  // Ranks take the place of the scores.
  int32_t* rank_all() const {
    BestHead* const h = head();
    char* const at = reinterpret_cast<char*>(scores());
    const int64_t count = h->count;
    for (int64_t i = h->ranked; i < count; ++i) {
      int32_t bits;
      __builtin_memcpy(&bits, at + 4 * i, sizeof bits);
      bits = rank(bits);
      __builtin_memcpy(at + 4 * i, &bits, sizeof bits);
    }
    h->ranked = count;
    return reinterpret_cast<int32_t*>(at);
  }

  int64_t at_least(const int32_t* ranks, int32_t bound) const {
    const int64_t n = head()->count;
    int32_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += ranks[i] >= bound ? 1 : 0;
    return count;
  }

  void keep_from(int32_t* ranks, int32_t bound) const {
    BestHead* const h = head();
    int32_t* const id = ids();
    const int64_t count = h->count;
    int32_t better = 0;
    for (int64_t i = 0; i < count; ++i) better += ranks[i] > bound ? 1 : 0;
    int64_t ties = keep - better;  // so many of those that equal the bound stay
    int64_t n = 0;
    for (int64_t i = 0; i < count; ++i) {  // no branch: nobody can predict it
      const int32_t r = ranks[i];
      ranks[n] = r;
      id[n] = id[i];
      const int64_t tie = static_cast<int64_t>(r == bound) & static_cast<int64_t>(ties > 0);
      n += static_cast<int64_t>(r > bound) | tie;
      ties -= tie;
    }
    *h = {n, n, bound, score(bound)};
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_BEST_H_
