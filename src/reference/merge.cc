// Merging partial results of disjoint sets of keys: an average weighted by each partial's sum of exponentials.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/reference.h"
#include "reference/view.h"

namespace tessera {
namespace reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

std::vector<View> views(const tessera_tensor* tensors, int64_t n) {
  std::vector<View> all;
  for (int64_t i = 0; i < n; ++i) all.emplace_back(tensors[i]);
  return all;
}

double maximum(const std::vector<double>& x) {
  double max = kMinusInfinity;
  for (double y : x) max = std::max(max, y);
  return max;
}

// Adds weight * partial's row to one row of the merge.
void add_row(const View& partial, int64_t row, int64_t dim, double weight, Merge* merge) {
  const std::vector<double> o = partial.row(row * dim, dim);
  for (size_t d = 0; d < o.size(); ++d) {
    const size_t i = static_cast<size_t>(row * dim) + d;
    merge->out[i] += weight * o[d];
    merge->spread[i] += weight * std::fabs(o[d]);
  }
}

Merge zeros(const View& out) {
  const size_t n = static_cast<size_t>(out.elements());
  return {std::vector<double>(n, 0), std::vector<double>(n, 0), {}};
}

}  // namespace

Merge cp_merge(const tessera_cp_merge_args& args) {
  const std::vector<View> o = views(args.o, args.num_states);
  const std::vector<View> l = views(args.l, args.num_states);
  const std::vector<View> m = views(args.m, args.num_states);
  const int64_t dim = View(args.out).last_size();
  Merge merge = zeros(View(args.out));
  for (int64_t row = 0; row < l[0].elements(); ++row) {
    std::vector<double> maxima;
    std::vector<size_t> full;  // shards that weigh something
    for (size_t i = 0; i < o.size(); ++i) {
      if (m[i].get(row) == kMinusInfinity || l[i].get(row) == 0) continue;
      full.push_back(i);
      maxima.push_back(m[i].get(row));
    }
    const double max = maximum(maxima);
    double sum = 0;
    for (size_t i : full) sum += l[i].get(row) * std::exp(m[i].get(row) - max);
    for (size_t i : full) add_row(o[i], row, dim, std::exp(m[i].get(row) - max) / sum, &merge);
  }
  return merge;
}

Merge merge_states(const tessera_merge_states_args& args) {
  const std::vector<View> out = views(args.partial_out, args.num_states);
  const std::vector<View> lse = views(args.partial_lse, args.num_states);
  const int64_t dim = View(args.out).last_size();
  Merge merge = zeros(View(args.out));
  for (int64_t row = 0; row < lse[0].elements(); ++row) {
    std::vector<double> lses;
    std::vector<size_t> full;
    for (size_t i = 0; i < out.size(); ++i) {
      if (lse[i].get(row) == kMinusInfinity) continue;
      full.push_back(i);
      lses.push_back(lse[i].get(row));
    }
    const double max = maximum(lses);
    double sum = 0;
    for (double x : lses) sum += std::exp(x - max);
    for (size_t i : full) add_row(out[i], row, dim, std::exp(lse[i].get(row) - max) / sum, &merge);
    merge.lse.push_back(full.empty() ? kMinusInfinity : max + std::log(sum));
  }
  return merge;
}

}  // namespace reference

Status reference_cp_merge(const tessera_cp_merge_args& args) {
  reference::View(args.out).set_values(reference::cp_merge(args).out);
  return {};
}

Status reference_merge_states(const tessera_merge_states_args& args) {
  const reference::Merge merge = reference::merge_states(args);
  reference::View(args.out).set_values(merge.out);
  reference::View(args.lse).set_values(merge.lse);
  return {};
}

}  // namespace tessera
