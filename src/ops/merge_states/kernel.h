// out = sum_i o_i w_i / sum_i l_i w_i with w_i = exp(m_i - M), M = max m_i over the shards that have keys; lse = M + log sum.
//
// One row after the other: first M from the m (and l) of all shards, then the row in chunks of up to kChunk features,
// whose sums stay in L1 while the shards' rows stream past them. Memory sets the speed: per feature one element of
// every shard is read once, multiplied and added, and one element is written. Loops that the compiler vectorises
// for the baseline come near that, so there is no variant per ISA.
//
// Order and rounding are fixed by the list of non-empty shards alone: they are added in groups of kGroup, each group from
// its first shard on, then group by group. The error so grows with kGroup + n / kGroup and not with n, and an
// empty shard, wherever it stands, changes no bit. Weights and their sum are the same for every chunk.
//
// A shard's NaN or infinity takes its course through the same arithmetic and so reaches its own row alone. A row with one
// non-empty partial is a copy.
#ifndef TESSERA_OPS_MERGE_STATES_KERNEL_H_
#define TESSERA_OPS_MERGE_STATES_KERNEL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/number.h"
#include "ops/merge_states/problem.h"

namespace tessera::merge_states {

constexpr int kChunk = 256;  // features summed at a time: 1 KiB
constexpr int kGroup = 32;   // shards summed before their sum is added to that of the groups before

// A place in [...].
struct Row {
  int64_t at[TESSERA_MAX_DIMS - 1] = {};

  Row(int64_t row, const tessera_tensor& like) {
    for (int axis = like.ndim - 2; axis >= 0; row /= like.shape[axis], --axis) at[axis] = row % like.shape[axis];
  }
  void next(const tessera_tensor& like) {
    for (int axis = like.ndim - 2; axis >= 0 && ++at[axis] == like.shape[axis]; --axis) at[axis] = 0;
  }
};

// The row's first element in t, which has `axes` axes before the feature axis, if any.
template <class T>
T* locate(const tessera_tensor& t, const Row& row, int axes) {
  int64_t offset = 0;
  for (int axis = 0; axis < axes; ++axis) offset += row.at[axis] * t.stride[axis];
  return static_cast<T*>(t.data) + offset;
}

template <class In, class Out>
class Kernel {
 public:
  explicit Kernel(const Problem& problem) : p_(problem), axes_(problem.out.ndim - 1) {}

  void run(int64_t begin, int64_t end) const {
    Row row(begin, p_.out);
    for (int64_t i = begin; i < end; ++i, row.next(p_.out)) merge(row);
  }

 private:
  // What the first pass over a row's shards finds.
  struct Live {
    float max = -std::numeric_limits<float>::infinity();
    int64_t count = 0, first = 0;
  };

  void merge(const Row& row) const {
    const Live live = find_live(row);
    Out* const out = locate<Out>(p_.out, row, axes_);
    if (live.count == 0) {
      std::fill_n(out, p_.dim, from_float<Out>(0));
      return write_lse(row, live.max);
    }
    if (live.count == 1 && p_.l == nullptr) {
      std::copy_n(locate<const Out>(p_.o[live.first], row, axes_), p_.dim, out);
      return write_lse(row, *locate<const float>(p_.m[live.first], row, axes_));
    }
    double total = 0;
    for (int64_t begin = 0; begin < p_.dim; begin += kChunk) {
      float sums[kChunk];
      const int n = static_cast<int>(std::min<int64_t>(kChunk, p_.dim - begin));
      total = sum_chunk(row, live, begin, n, sums);
      divide(sums, static_cast<float>(total), n, out + begin);
    }
    write_lse(row, live.max + static_cast<float>(std::log(total)));
  }

  void write_lse(const Row& row, float value) const {
    if (p_.l == nullptr) *locate<float>(p_.lse, row, axes_) = value;
  }

  float length(const Row& row, int64_t i) const {
    return p_.l == nullptr ? 1 : *locate<const float>(p_.l[i], row, axes_);
  }

  bool is_empty(float m, float l) const { return m == -std::numeric_limits<float>::infinity() || l == 0; }

  Live find_live(const Row& row) const {
    Live live;
    for (int64_t i = 0; i < p_.num_states; ++i) {
      const float m = *locate<const float>(p_.m[i], row, axes_);
      if (is_empty(m, length(row, i))) continue;
      if (live.count++ == 0) live.first = i;
      if (m > live.max) live.max = m;  // a NaN makes itself felt through its weight
    }
    return live;
  }

  // sums[0, n) = sum_i o_i[begin, begin + n) w_i; returns sum_i l_i w_i.
  double sum_chunk(const Row& row, const Live& live, int64_t begin, int n, float* sums) const {
    float group[kChunk];
    double total = 0;
    int64_t added = 0;
    for (int64_t i = live.first; added < live.count; ++i) {
      const float m = *locate<const float>(p_.m[i], row, axes_);
      const float l = length(row, i);
      if (is_empty(m, l)) continue;
      const float weight = std::exp(m - live.max);
      total += static_cast<double>(weight) * l;
      add_scaled(locate<const In>(p_.o[i], row, axes_) + begin, weight, n, added % kGroup == 0, group);
      if (++added % kGroup == 0 || added == live.count) add_scaled(group, 1, n, added <= kGroup, sums);
    }
    return total;
  }

  static void divide(const float* __restrict sums, float total, int n, Out* __restrict out) {
    for (int j = 0; j < n; ++j) out[j] = from_float<Out>(sums[j] / total);
  }

  // sums[0, n) += weight x[0, n); `first`: = in place of +=.
  template <class T>
  static void add_scaled(const T* __restrict x, float weight, int n, bool first, float* __restrict sums) {
    if (first) {
      for (int j = 0; j < n; ++j) sums[j] = weight * to_float(x[j]);
    } else {
      for (int j = 0; j < n; ++j) sums[j] += weight * to_float(x[j]);
    }
  }

  const Problem& p_;
  const int axes_;
};

}  // namespace tessera::merge_states

#endif  // TESSERA_OPS_MERGE_STATES_KERNEL_H_
