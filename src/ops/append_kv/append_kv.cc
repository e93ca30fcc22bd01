#include "ops/append_kv/append_kv.h"

#include <algorithm>

#include "cpu/features.h"
#include "ops/append_kv/kernel.h"
#include "ops/layout.h"
#include "runtime/executor.h"

namespace tessera::append_kv {
namespace {

// Elements copied by a task: some 5 us of memory traffic.
constexpr int64_t kTaskElements = int64_t{1} << 14;
// Every share of a head reads all slots: for this many of them, a twentieth of the time of copying the rows.
constexpr int64_t kMaxShares = 8;

}  // namespace

// A task has some heads, or the pages of a head with one remainder: all rows for a slot are in one task, in order.
Status run(const Problem& p, const tessera_context& context) {
  if (context.variant != nullptr) {
    std::string why = why_unavailable(*find_variant(context.variant));
    if (!why.empty()) return not_implemented(std::move(why));
  }
  if (p.rows == 0 || p.heads == 0) return {};
  const int64_t head_tasks = std::min(p.rows, kTaskElements * kMaxShares) * p.row_elements / kTaskElements;
  const int64_t shares = std::clamp<int64_t>(head_tasks, 1, kMaxShares);
  const int64_t heads_per_task = head_tasks > 0 ? 1 : std::min(p.heads, kTaskElements / (p.rows * p.row_elements));
  const Executor executor(context.executor);
  executor.parallel_for(
      ceil_div(p.heads, heads_per_task) * shares,
      [&](int64_t task, int) {
        const int64_t first = task / shares * heads_per_task;
        for (int64_t head = first; head < std::min(first + heads_per_task, p.heads); ++head) {
          append(p, head, task % shares, shares);
        }
      },
      "append_kv");
  return {};
}

}  // namespace tessera::append_kv
