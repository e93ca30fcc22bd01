// out = sum_i o_i w_i / sum_i l_i w_i with w_i = exp(m_i - M), M = max m_i over the shards that have keys; lse = M + log sum.
//
// One row after the other: its non-empty shards are collected in groups of kGroup and weighed together, one exp2 per
// vector of shards. Then their rows stream past sums that stay in L1: a load, a conversion and an FMA per vector. At the
// end a division and the rounding to the output. Per feature one element of every shard is read and one is written. A
// row of four shards of 128 features takes 0.1 us of AVX2, most of it for addresses, weights and quotients, whatever the
// type: f32 is so bound by memory, two-byte types come to 0.6 of that rate.
//
// Order and rounding are fixed by the list of non-empty shards alone: a group is summed from its first shard on, then
// group is added to group. The error so grows with kGroup + n / kGroup and not with n, and an empty shard, wherever it
// stands, changes no bit. Nor do chunks of features.
//
// A shard's NaN or infinity takes its course through the same arithmetic and so reaches its own row alone. A row with one
// non-empty partial is a copy.
#ifndef TESSERA_OPS_MERGE_STATES_KERNEL_H_
#define TESSERA_OPS_MERGE_STATES_KERNEL_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/number.h"
#include "ops/merge_states/problem.h"

namespace tessera::merge_states {

constexpr int kChunk = 256;  // features summed at a time: 1 KiB
constexpr int kGroup = 32;   // shards summed before their sum is added to that of the groups before

// In: element type of o.
template <class Isa, class In, class Out>
class Rows {
 public:
  static void merge(const Problem& p, int64_t begin, int64_t end) {
    const Rows rows(p);
    Place at(begin, p.out);
    for (int64_t i = begin; i < end; ++i, at.next(p.out)) rows.merge(at);
  }

 private:
  using vec = typename Isa::vec;
  static constexpr int kLanes = Isa::kLanes;

  // A place in [...].
  struct Place {
    int64_t at[TESSERA_MAX_DIMS - 1] = {};

    Place(int64_t row, const tessera_tensor& like) {
      for (int axis = like.ndim - 2; axis >= 0; row /= like.shape[axis], --axis) at[axis] = row % like.shape[axis];
    }
    void next(const tessera_tensor& like) {
      for (int axis = like.ndim - 2; axis >= 0 && ++at[axis] == like.shape[axis]; --axis) at[axis] = 0;
    }
  };

  // Non-empty shards of a row, in order.
  struct Group {
    const In* o[kGroup];
    float m[kGroup];
    float l[kGroup];
    float weight[kGroup];
    double total;  // sum of l weight
    int count;
  };

  explicit Rows(const Problem& p) : p_(p), axes_(p.out.ndim - 1) {}

  // The place's first element in t.
  template <class T>
  T* locate(const tessera_tensor& t, const Place& place) const {
    int64_t offset = 0;
    for (int axis = 0; axis < axes_; ++axis) offset += place.at[axis] * t.stride[axis];
    return static_cast<T*>(t.data) + offset;
  }

  void merge(const Place& place) const {
    Group group;
    float max = -INFINITY;
    int groups = 0;
    for (int64_t i = 0; i < p_.num_states; ++groups) {
      i = collect(place, i, &group);
      for (int j = 0; j < group.count; ++j) max = group.m[j] > max ? group.m[j] : max;  // a NaN's weight will be NaN
    }
    Out* const out = locate<Out>(p_.out, place);
    if (groups == 1 && group.count == 0) {
      memset(out, 0, static_cast<size_t>(p_.dim) * sizeof(Out));
      return write_lse(place, max);
    }
    if (groups == 1 && group.count == 1 && p_.l == nullptr) {
      memcpy(out, group.o[0], static_cast<size_t>(p_.dim) * sizeof(Out));
      return write_lse(place, group.m[0]);
    }
    if (groups == 1) weigh(max, &group);
    double total = 0;
    for (int64_t begin = 0; begin < p_.dim; begin += kChunk) {
      const int n = static_cast<int>(p_.dim - begin < kChunk ? p_.dim - begin : kChunk);
      float sums[kChunk];
      total = groups == 1 ? sum(group, begin, n, true, sums) : sum_groups(place, groups, max, begin, n, sums);
      finish(sums, static_cast<float>(total), n, out + begin);
    }
    write_lse(place, max + logf(static_cast<float>(total)));
  }

  void write_lse(const Place& place, float value) const {
    if (p_.l == nullptr) *locate<float>(p_.lse, place) = value;
  }

  // The next group, from shard i on; returns where the one after it begins.
  int64_t collect(const Place& place, int64_t i, Group* group) const {
    group->count = 0;
    for (; i < p_.num_states && group->count < kGroup; ++i) {
      const float m = *locate<const float>(p_.m[i], place);
      const float l = p_.l == nullptr ? 1.0f : *locate<const float>(p_.l[i], place);
      if (m == -INFINITY || l == 0.0f) continue;
      group->o[group->count] = locate<const In>(p_.o[i], place);
      group->m[group->count] = m;
      group->l[group->count++] = l;
    }
    return i;
  }

  static void weigh(float max, Group* group) {
    constexpr float kLog2e = 1.44269504f;
    for (int i = group->count; i % kLanes != 0; ++i) group->m[i] = max;
    for (int i = 0; i < group->count; i += kLanes) {
      const vec below = Isa::add(Isa::load(group->m + i), Isa::set1(-max));
      Isa::store(group->weight + i, Isa::template exp2<true>(Isa::mul(below, Isa::set1(kLog2e))));
    }
    group->total = 0;
    for (int i = 0; i < group->count; ++i) {
      group->total += static_cast<double>(group->weight[i]) * static_cast<double>(group->l[i]);
    }
  }

  double sum_groups(const Place& place, int groups, float max, int64_t begin, int n, float* sums) const {
    double total = 0;
    int64_t next = 0;
    for (int i = 0; i < groups; ++i) {
      Group group;
      next = collect(place, next, &group);
      weigh(max, &group);
      if (group.count != 0) total += sum(group, begin, n, i == 0, sums);
    }
    return total;
  }

  // sums[0, n) = the group's features [begin, begin + n), or += unless it is the first; returns the group's total.
  static double sum(const Group& group, int64_t begin, int n, bool first, float* sums) {
    float own[kChunk];
    float* to = first ? sums : own;
    for (int i = 0; i < group.count; ++i) add_scaled(group.o[i] + begin, group.weight[i], n, i == 0, to);
    for (int d = 0; !first && d < n; d += kLanes) {
      Isa::store(sums + d, Isa::add(Isa::load(sums + d), Isa::load(own + d)));
    }
    return group.total;
  }

  // sums[0, n) += weight x[0, n); `first`: = in place of +=.
  static void add_scaled(const In* __restrict x, float weight, int n, bool first, float* __restrict sums) {
    const vec w = Isa::set1(weight);
    int d = 0;
    if (first) {
      for (; d + kLanes <= n; d += kLanes) Isa::store(sums + d, Isa::mul(w, Isa::units(x + d, kLanes)));
      if (d < n) Isa::store(sums + d, Isa::mul(w, Isa::units(x + d, n - d)));
    } else {
      for (; d + kLanes <= n; d += kLanes) {
        Isa::store(sums + d, Isa::fma(w, Isa::units(x + d, kLanes), Isa::load(sums + d)));
      }
      if (d < n) Isa::store(sums + d, Isa::fma(w, Isa::units(x + d, n - d), Isa::load(sums + d)));
    }
  }

  static void finish(float* sums, float total, int n, Out* out) {
    for (int i = 0; i < n; ++i) sums[i] /= total;
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) Isa::store_first(out + i, Isa::load(sums + i), kLanes);
    if (i < n) Isa::store_first(out + i, Isa::load(sums + i), n - i);
  }

  const Problem& p_;
  const int axes_;  // before the feature axis
};

template <class Isa, class Out>
struct MergeStates {
  static_assert(Isa::kPair == 1, "sums are f32");
  static constexpr Kernel kernel() { return {Rows<Isa, Out, Out>::merge, Rows<Isa, float, Out>::merge}; }
};

}  // namespace tessera::merge_states

#endif  // TESSERA_OPS_MERGE_STATES_KERNEL_H_
