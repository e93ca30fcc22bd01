// The K best of a stream of scores, without storing the stream: a list of candidates in the order of their ids, and a bar
// that a new score must pass. When the list is full, the best K stay and the bar rises to the worst of them.
//
// Preference: higher first, -0 equal to +0, NaN below every number, equal ones by lower id. Scores come by increasing id,
// so one that equals the bar comes too late. As integers that order like the preference, NaN is the least.
//
// Cost: a load and a comparison for each vector of scores, a few cycles for each that passes (K ln(N/K) of N scores in
// random order), and for each 2 K that have passed a bisection of the K-th best: at most 32 counts over 3 K integers, each
// vectorised by the compiler, 10,000 cycles at K = 512 with 8 lanes. The worst order, ascending, costs 8 cycles a score.
#ifndef TESSERA_TILE_BEST_H_
#define TESSERA_TILE_BEST_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>

namespace tessera {

// The list of one row, at the beginning of its memory; ranks and ids follow.
struct BestHead {
  int64_t count;
  int64_t bar_rank;  // ranks above this enter ...
  float bar;         // ... which are among those of scores that are not <= this
};

template <class Isa>
struct Best {
  using vec = typename Isa::vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int32_t kNanRank = INT32_MIN;
  static constexpr int64_t kNoBar = int64_t{kNanRank} - 1;

  int64_t keep;      // K
  int64_t capacity;  // at least K + the scores of one add()
  char* data;        // bytes(capacity)

  static size_t bytes(int64_t capacity) { return sizeof(BestHead) + static_cast<size_t>(capacity) * 8; }

  BestHead* head() const { return reinterpret_cast<BestHead*>(data); }
  int32_t* ranks() const { return reinterpret_cast<int32_t*>(data + sizeof(BestHead)); }
  int32_t* ids() const { return ranks() + capacity; }

  void clear() const { *head() = {0, kNoBar, NAN}; }

  static int32_t rank(float score) {
    if (score != score) return kNanRank;
    int32_t bits;
    const float plus = score + 0.0f;  // -0 becomes +0
    __builtin_memcpy(&bits, &plus, sizeof bits);
    return bits ^ ((bits >> 31) & INT32_MAX);
  }
  // A score of that rank, or just below: -0 has none of its own. NaN below the numbers.
  static float score(int32_t rank) {
    if (rank == -1) rank = -2;
    const int32_t bits = rank ^ ((rank >> 31) & INT32_MAX);
    float score;
    __builtin_memcpy(&score, &bits, sizeof score);
    return score;
  }

  // Scores of ids first_id + i for i in [begin, end), followed by anything up to a whole vector.
  void add(const float* scores, int begin, int end, int64_t first_id) const {
    reserve(end - begin);
    const vec bar = Isa::set1(head()->bar);
    for (int i = begin; i < end; i += kLanes) {
      unsigned mask = Isa::not_at_most(Isa::load(scores + i), bar);
      if (end - i < kLanes) mask &= (1u << (end - i)) - 1;
      for (; mask != 0; mask &= mask - 1) {
        const int at = i + __builtin_ctz(mask);
        push(rank(scores[at]), static_cast<int32_t>(first_id + at));
      }
    }
  }

  // All of another list, whose ids are higher.
  void add(const Best& other) const {
    const int64_t n = other.head()->count;
    for (int64_t i = 0; i < n; ++i) {
      if (head()->count == capacity) reduce();
      push(other.ranks()[i], other.ids()[i]);
    }
  }

  void push(int32_t rank, int32_t id) const {
    BestHead* const h = head();
    if (rank <= h->bar_rank) return;
    ranks()[h->count] = rank;
    ids()[h->count++] = id;
  }

  void reserve(int64_t more) const {
    if (head()->count + more > capacity) reduce();
  }

  // Leaves the best `keep`, in the order of their ids.
  void reduce() const {
    BestHead* const h = head();
    if (h->count <= keep) return;
    int32_t* const rank_of = ranks();
    const int64_t n = h->count;
    int64_t low = h->bar_rank > kNanRank ? h->bar_rank : kNanRank;  // at least `keep` ranks are not below it
    int32_t most = kNanRank;
    for (int64_t i = 0; i < n; ++i) most = rank_of[i] > most ? rank_of[i] : most;
    int64_t high = most;  // fewer are above it
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      const int64_t count = at_least(static_cast<int32_t>(middle), n);
      (count >= keep ? low : high) = count >= keep ? middle : middle - 1;
      if (count == keep) break;
    }
    keep_from(static_cast<int32_t>(low), n);
  }

 private:
  int64_t at_least(int32_t bound, int64_t n) const {
    const int32_t* const rank_of = ranks();
    int32_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += rank_of[i] >= bound ? 1 : 0;
    return count;
  }

  void keep_from(int32_t bound, int64_t n) const {
    BestHead* const h = head();
    int32_t* const rank_of = ranks();
    int32_t* const id_of = ids();
    int64_t ties = keep;  // of those that equal the bound, so many stay
    for (int64_t i = 0; i < n; ++i) ties -= rank_of[i] > bound ? 1 : 0;
    int64_t to = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t rank = rank_of[i];
      const bool tie = rank == bound && ties > 0;
      rank_of[to] = rank;
      id_of[to] = id_of[i];
      to += rank > bound || tie ? 1 : 0;
      ties -= tie ? 1 : 0;
    }
    h->count = to;
    h->bar = score(bound);
    h->bar_rank = bound;
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_BEST_H_
