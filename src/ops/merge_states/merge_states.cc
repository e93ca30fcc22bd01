#include "ops/merge_states/merge_states.h"

#include <algorithm>

#include "ops/merge_states/variants.h"
#include "runtime/executor.h"

namespace tessera::merge_states {
namespace {

// Elements read by a task: some 10 us of memory traffic, so that handing it out costs nothing in comparison.
constexpr int64_t kTaskElements = int64_t{1} << 15;

}  // namespace

Status run(const Problem& p, const tessera_context& context) {
  Status complaint;
  const Variant* variant = choose_variant(variants(), context.variant, p.out.dtype, &complaint);
  if (variant == nullptr) return complaint;
  const Kernel& kernel = *variant->kernel(p.out.dtype);
  const auto merge = p.l == nullptr ? kernel.partials : kernel.states;
  const int64_t rows_per_task = std::max<int64_t>(1, kTaskElements / p.dim / p.num_states);
  const Executor executor(context.executor);
  executor.parallel_for(
      p.rows / rows_per_task + (p.rows % rows_per_task != 0 ? 1 : 0),
      [&](int64_t task, int) {
        const int64_t begin = task * rows_per_task;
        merge(p, begin, std::min(p.rows, begin + rows_per_task));
      },
      "merge_states");
  return {};
}

}  // namespace tessera::merge_states
