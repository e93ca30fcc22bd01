#include "ops/token_attn/token_attn.h"

#include <algorithm>

#include "ops/prepared.h"
#include "ops/token_attn/plan.h"
#include "ops/token_attn/rows.h"
#include "ops/token_attn/variants.h"

namespace tessera::token_attn {
namespace {

using Call = Prepared<Problem, Row, Kernel>;

}  // namespace

Status run(const Problem& checked, const tessera_context& context) {
  const Executor executor(context.executor);
  const Call call(checked, variants(), context, executor);
  if (!call.status.ok()) return call.status;
  const Problem& p = call.problem;
  const Plan& plan = call.plan;
  const Workspace workspace = call.workspace(context);
  char* const base = reinterpret_cast<char*>(workspace.data());

  if (!plan.split) {
    executor.parallel_for(
        plan.tasks,
        [&](int64_t i, int worker) {
          const int64_t end = std::min((i + 1) * kTaskRows, p.rows.rows);
          for (int64_t row = i * kTaskRows; row < end; ++row) {
            plan.kernel->attend(p, plan, {row, 0, p.kv_heads, 0, plan.chunks}, base, worker);
          }
        },
        "attend");
    return {};
  }
  const int64_t head_tasks = p.kv_heads / plan.task_heads;
  executor.parallel_for(
      plan.tasks,
      [&](int64_t i, int worker) {
        const int64_t head = i % head_tasks * plan.task_heads;
        const int64_t chunk = i / head_tasks % plan.chunks;
        const int64_t row = i / head_tasks / plan.chunks;
        plan.kernel->attend(p, plan, {row, head, head + plan.task_heads, chunk, chunk + 1}, base, worker);
      },
      "attend");
  executor.parallel_for(
      p.rows.rows,
      [&](int64_t row, int worker) {
        plan.kernel->merge(p, plan, {row, 0, p.kv_heads, 0, plan.chunks}, base, worker);
      },
      "merge");
  return {};
}

Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes) {
  return Call::workspace_size(problem, variants(), context, bytes);
}

Status explain(const Problem& checked, const tessera_context& given, std::string* text) {
  tessera_context context = given;
  context.workspace = nullptr;
  const Executor executor(context.executor);
  const Call call(checked, variants(), context, executor);
  if (!call.status.ok()) return call.status;
  const Problem& p = call.problem;
  const Plan& plan = call.plan;
  size_t workspace = 0;
  if (Status s = workspace_size(checked, context, &workspace); !s.ok()) return s;
  const auto number = [](auto n) { return std::to_string(n); };
  text->clear();
  for (const Variant& v : variants()) {
    if (v.kernel(p.dtype) == plan.kernel) {
      *text += std::string("variant: ") + v.name + "\n";
      break;
    }
    *text += context.variant != nullptr ? std::string("variant ") + v.name + ": another was asked for\n"
                                        : why_not(v, p.dtype) + "\n";
  }
  *text += "lists: up to " + number(p.longest) + " tokens, in up to " + number(plan.chunks) + " chunks" +
           (p.splits == 0 ? " of " + number(kChunkTokens) : std::string(" as asked for")) + "\n";
  *text += "tasks: " + number(plan.tasks) +
           (plan.split ? ", a chunk of a row and " + number(plan.task_heads) + " KV heads each, then merged"
                       : ", " + number(kTaskRows) + " rows each") +
           "\n";
  *text += "workspace: " + number(workspace) + " bytes, " + number(plan.scratch.bytes) + " of them for each of " +
           number(executor.workers()) + " workers\n";
  return {};
}

}  // namespace tessera::token_attn
