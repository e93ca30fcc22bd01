#include "ops/qsa_score/qsa_score.h"

#include <algorithm>

#include "ops/prepared.h"
#include "ops/qsa_score/plan.h"
#include "ops/qsa_score/rows.h"
#include "ops/qsa_score/variants.h"

namespace tessera::qsa_score {
namespace {

using Call = Prepared<Problem, Row, Kernel>;

}  // namespace

Status run(const Problem& problem, const tessera_context& context) {
  const Executor executor(context.executor);
  const Call call(problem, variants(), context, executor);
  if (!call.status.ok()) return call.status;
  const Problem& p = call.problem;
  const Plan& plan = call.plan;
  const Workspace workspace = call.workspace(context);
  char* const base = reinterpret_cast<char*>(workspace.data());

  // Lists of the chunks of a tile; of the only one, in the worker's scratch.
  const size_t chunk_bytes = static_cast<size_t>(p.tile_rows * plan.best_bytes);
  const auto lists = [&](int64_t tile, char* scratch) {
    const size_t tile_bytes = static_cast<size_t>(plan.chunks) * chunk_bytes;
    return plan.chunks == 1 ? scratch + plan.scratch.best : base + plan.best + static_cast<size_t>(tile) * tile_bytes;
  };
  const auto scratch_of = [&](int worker) {
    return base + plan.workers + static_cast<size_t>(worker) * plan.scratch.bytes;
  };
  const auto write = [&](int64_t tile, char* scratch) {
    plan.kernel->write(p, plan, tile, lists(tile, scratch), chunk_bytes, scratch);
  };

  auto* const bars = reinterpret_cast<int32_t*>(base + plan.bars);
  if (p.codes.data != nullptr) std::fill_n(bars, p.tiles * kScreenRows, 0);
  executor.parallel_for(
      p.tiles * plan.chunks,
      [&](int64_t i, int worker) {
        const int64_t tile = p.tiles - 1 - i / plan.chunks;  // late rows first: they see the most keys
        const int64_t chunk = i % plan.chunks;
        const int64_t begin = chunk * plan.chunk_keys;
        const bool last = chunk + 1 == plan.chunks;
        const int64_t end = !last ? begin + plan.chunk_keys : p.selects ? std::max(begin, p.most_keys) : p.columns;
        char* const scratch = scratch_of(worker);
        char* const best = lists(tile, scratch) + static_cast<size_t>(chunk) * chunk_bytes;
        plan.kernel->score(p, plan, {tile, begin, end, best, bars + tile * kScreenRows}, scratch);
        if (p.selects && plan.chunks == 1) write(tile, scratch);
      },
      "score");
  if (!p.selects || plan.chunks == 1) return {};
  executor.parallel_for(
      p.tiles, [&](int64_t tile, int worker) { write(tile, scratch_of(worker)); }, "select");
  return {};
}

Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes) {
  return Call::workspace_size(problem, variants(), context, bytes);
}

}  // namespace tessera::qsa_score
