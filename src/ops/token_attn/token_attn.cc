#include "ops/token_attn/token_attn.h"

#include <algorithm>

#include "ops/block_attn/block_attn.h"
#include "ops/prepared.h"
#include "ops/token_attn/dense.h"
#include "ops/token_attn/plan.h"
#include "ops/token_attn/rows.h"
#include "ops/token_attn/variants.h"

namespace tessera::token_attn {
namespace {

using Call = Prepared<Problem, Row, Kernel>;

// Block attention of the dense rows, in what the caller's workspace has left.
struct Dense {
  Dense(const Call& call, const tessera_context& given, char* base)
      : problem(dense_problem(call.problem, reinterpret_cast<block_attn::Cut*>(base + call.plan.cuts),
                              reinterpret_cast<int32_t*>(base + call.plan.ids))),
        context(given) {
    if (given.workspace == nullptr) return;
    const size_t used = static_cast<size_t>(base - static_cast<char*>(given.workspace)) + call.plan.bytes;
    context.workspace = static_cast<char*>(given.workspace) + used;
    context.workspace_bytes = given.workspace_bytes - used;
  }
  block_attn::Problem problem;
  tessera_context context;
};

}  // namespace

Status run(const Problem& checked, const tessera_context& context) {
  const Executor executor(context.executor);
  const Call call(checked, variants(), context, executor);
  if (!call.status.ok()) return call.status;
  const Problem& p = call.problem;
  const Plan& plan = call.plan;
  const Workspace workspace = call.workspace(context);
  char* const base = reinterpret_cast<char*>(workspace.data());

  // First, for it may be short of memory, and nothing is written yet.
  if (p.runs > 0) {
    const Dense dense(call, context, base);
    if (Status s = block_attn::run(dense.problem, dense.context); !s.ok()) return s;
  }
  if (!plan.split) {
    executor.parallel_for(
        plan.tasks,
        [&](int64_t i, int worker) {
          const int64_t end = std::min((i + 1) * kTaskRows, p.rows.rows);
          for (int64_t row = i * kTaskRows; row < end; ++row) {
            if (!p.table[row].dense) plan.kernel->attend(p, plan, {row, 0, p.kv_heads, 0, plan.chunks}, base, worker);
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
        const Task task = {row, head, head + plan.task_heads, chunk, chunk + 1};
        if (!p.table[row].dense) plan.kernel->attend(p, plan, task, base, worker);
      },
      "attend");
  executor.parallel_for(
      p.rows.rows,
      [&](int64_t row, int worker) {
        const Task task = {row, 0, p.kv_heads, 0, plan.chunks};
        if (!p.table[row].dense) plan.kernel->merge(p, plan, task, base, worker);
      },
      "merge");
  return {};
}

Status workspace_size(const Problem& checked, const tessera_context& given, size_t* bytes) {
  tessera_context context = given;
  context.workspace = nullptr;
  if (Status s = Call::workspace_size(checked, variants(), context, bytes); !s.ok()) return s;
  const Call call(checked, variants(), context, Executor(context.executor));
  if (call.problem.runs == 0) return {};
  const Workspace workspace = call.workspace(context);
  const Dense dense(call, context, reinterpret_cast<char*>(workspace.data()));
  size_t more = 0;
  Status s = block_attn::workspace_size(dense.problem, dense.context, &more);
  *bytes += more;
  return s;
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
  *text = explain_variants(variants(), plan.kernel, p.dtype, context.variant != nullptr);
  int64_t dense = 0;
  for (int64_t row = 0; row < p.rows.rows; ++row) dense += p.table[row].dense ? 1 : 0;
  *text += "dense rows: " + number(dense) + " in " + number(p.runs) + " runs, by block attention\n";
  *text += "lists: up to " + number(p.longest) + " tokens, in up to " + number(plan.chunks) + " chunks" +
           (p.splits == 0 ? " of " + number(kChunkTokens) : std::string(" as asked for")) + "\n";
  if (p.pages.packed) *text += "keys: packed pages of " + number(p.pages.page_size) + " tokens, runs of 4 in place\n";
  *text += "tasks: " + number(plan.tasks) +
           (plan.split ? ", a chunk of a row and " + number(plan.task_heads) + " KV heads each, then merged"
                       : ", " + number(kTaskRows) + " rows each") +
           "\n";
  *text += "workspace: " + number(workspace) + " bytes, " + number(plan.scratch.bytes) + " of them for each of " +
           number(executor.workers()) + " workers\n";
  return {};
}

}  // namespace tessera::token_attn
