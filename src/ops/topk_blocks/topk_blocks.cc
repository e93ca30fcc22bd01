#include "ops/topk_blocks/topk_blocks.h"

#include <algorithm>

#include "ops/prepared.h"
#include "ops/topk_blocks/plan.h"
#include "ops/topk_blocks/variants.h"

namespace tessera::topk_blocks {

// For Prepared: there are no requests.
int64_t table_entries(const Problem&) { return 0; }
void resolve(char*, Problem*) {}

namespace {

using Call = Prepared<Problem, char, Kernel>;

}  // namespace

Status run(const Problem& p, const tessera_context& context) {
  const Executor executor(context.executor);
  const Call call(p, variants(), context, executor);
  if (!call.status.ok()) return call.status;
  const Plan& plan = call.plan;
  const Workspace workspace = call.workspace(context);
  char* const base = reinterpret_cast<char*>(workspace.data());

  const auto list_of = [&](int worker) { return base + plan.workers + worker * plan.list_bytes; };
  const auto chunk_list = [&](int64_t i) { return base + plan.lists + i * plan.list_bytes; };
  executor.parallel_for(
      p.rows * plan.chunks,
      [&](int64_t i, int worker) {
        const int64_t row = i / plan.chunks;
        const int64_t begin = i % plan.chunks * plan.chunk;
        char* const list = plan.chunks == 1 ? list_of(worker) : chunk_list(i);
        plan.kernel->collect(p, plan, row, begin, std::min(begin + plan.chunk, p.entries), list);
        if (plan.chunks == 1) plan.kernel->write(p, plan, row, list, nullptr);
      },
      "topk_blocks");
  if (plan.chunks == 1) return {};
  executor.parallel_for(
      p.rows,
      [&](int64_t row, int worker) {
        plan.kernel->write(p, plan, row, chunk_list(row * plan.chunks), list_of(worker));
      },
      "merge");
  return {};
}

Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes) {
  return Call::workspace_size(problem, variants(), context, bytes);
}

}  // namespace tessera::topk_blocks
