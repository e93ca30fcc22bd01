#include "ops/expand_blocks/expand_blocks.h"

#include <algorithm>

#include "cpu/features.h"
#include "ops/expand_blocks/expand.h"
#include "ops/layout.h"
#include "runtime/executor.h"

namespace tessera::expand_blocks {
namespace {

// Ids written by a task: some 10 us.
constexpr int64_t kTaskIds = int64_t{1} << 15;

// Of the axes before the last one of `ids`, row-major.
void expand(const Problem& p, int64_t row) {
  int64_t ids = 0, position = 0, tokens = 0;
  const int last = p.ids.ndim - 1;
  for (int axis = last - 1; axis >= 0; --axis) {
    const int64_t i = row % p.ids.shape[axis];
    row /= p.ids.shape[axis];
    ids += i * p.ids.stride[axis];
    position += i * p.positions.stride[axis];
    tokens += i * p.tokens.stride[axis];
  }
  expand_row(static_cast<const int32_t*>(p.ids.data) + ids, p.ids.stride[last], p.count,
             static_cast<const int32_t*>(p.positions.data)[position], p.block,
             static_cast<int32_t*>(p.tokens.data) + tokens, p.tokens.stride[last], p.width);
}

}  // namespace

// Integers that are written once: bound by memory, so there is one variant.
Status run(const Problem& p, const tessera_context& context) {
  if (context.variant != nullptr) {
    std::string why = why_unavailable(*find_variant(context.variant));
    if (!why.empty()) return not_implemented(std::move(why));
  }
  if (p.width == 0) return {};
  const int64_t task_rows = std::max<int64_t>(1, kTaskIds / p.width);
  const Executor executor(context.executor);
  executor.parallel_for(
      ceil_div(p.rows, task_rows),
      [&](int64_t task, int) {
        const int64_t end = std::min(p.rows, (task + 1) * task_rows);
        for (int64_t row = task * task_rows; row < end; ++row) expand(p, row);
      },
      "expand_blocks");
  return {};
}

}  // namespace tessera::expand_blocks
