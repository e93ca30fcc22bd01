#include "ops/merge_states/merge_states.h"

#include <algorithm>

#include "cpu/features.h"
#include "ops/merge_states/kernel.h"
#include "runtime/executor.h"

namespace tessera::merge_states {
namespace {

// Elements read by a task: some 10 us of memory traffic, so that handing it out costs nothing in comparison.
constexpr int64_t kTaskElements = int64_t{1} << 15;

template <class In, class Out>
void run_rows(const Problem& p, int64_t begin, int64_t end) {
  Kernel<In, Out>(p).run(begin, end);
}

using RunRows = void (*)(const Problem& p, int64_t begin, int64_t end);

RunRows choose(const Problem& p) {
  switch (p.out.dtype) {
    case TESSERA_BF16: return p.l == nullptr ? run_rows<bf16, bf16> : run_rows<float, bf16>;
    case TESSERA_F16: return p.l == nullptr ? run_rows<f16, f16> : run_rows<float, f16>;
    default: return run_rows<float, float>;
  }
}

}  // namespace

Status run(const Problem& p, const tessera_context& context) {
  // The one kernel stands for every variant, so any that this CPU has may be asked for.
  if (context.variant != nullptr) {
    if (std::string why = why_unavailable(*find_variant(context.variant)); !why.empty()) return not_implemented(why);
  }
  const int64_t rows_per_task = std::max<int64_t>(1, kTaskElements / p.dim / p.num_states);
  const RunRows run_task = choose(p);
  const Executor executor(context.executor);
  executor.parallel_for(
      p.rows / rows_per_task + (p.rows % rows_per_task != 0 ? 1 : 0),
      [&](int64_t task, int) {
        const int64_t begin = task * rows_per_task;
        run_task(p, begin, std::min(p.rows, begin + rows_per_task));
      },
      "merge_states");
  return {};
}

}  // namespace tessera::merge_states
