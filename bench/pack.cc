// Packing one block of keys and values into panels, per variant and type: bytes of the row-major source per second.
#include "bench.h"
#include "ops/block_attn/check.h"
#include "ops/block_attn/variants.h"

namespace tessera::bench {
namespace {

void run(benchmark::State& state, tessera_dtype dtype, const block_attn::Kernel& kernel) {
  constexpr int64_t kKeys = 128, kDim = 128, kTokens = 65;  // two tiles: packed once
  const Tensor q(dtype, {1, kTokens, 1, kDim}), out(dtype, {1, kTokens, 1, kDim});
  const Tensor k(dtype, {1, kKeys, 1, kDim}), v(dtype, {1, kKeys, 1, kDim}), ids(TESSERA_I32, {1, kTokens, 1});
  tessera_block_sparse_gqa_prefill_args args = {};
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.kv_indices = ids.view();
  args.block_q = 1;
  args.out = out.view();
  block_attn::Problem problem;
  if (!block_attn::check(args, false, &problem).ok()) return state.SkipWithError("refused");
  block_attn::Request request = {};
  request.seq = {0, kTokens, 0, kKeys, kKeys - kTokens};
  problem.requests = &request;
  const block_attn::Plan plan = block_attn::make_plan(problem, kernel, true, 1);
  if (request.source != block_attn::Source::kPackOnce) return state.SkipWithError("packs on the fly");
  Tensor workspace(TESSERA_I32, {static_cast<int64_t>(plan.bytes / 4) + 1});
  std::memset(workspace.data<char>(), 0, plan.bytes);
  *reinterpret_cast<uint64_t*>(workspace.data<char>() + plan.used) = 1;  // block 0
  for (auto _ : state) {
    kernel.pack(problem, plan, request, workspace.data<char>(), 0, 0, 0);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(k.bytes() + v.bytes()));
}

const bool registered = for_each_variant([](const char* variant, tessera_dtype dtype) {
  for (const block_attn::Variant& v : block_attn::variants()) {
    const block_attn::Kernel* const kernel = v.kernel(dtype);
    if (std::strcmp(v.name, variant) != 0 || kernel == nullptr) continue;
    const std::string name = std::string("pack/128x128/") + dtype_text(dtype) + "/" + variant;
    benchmark::RegisterBenchmark(name.c_str(), [dtype, kernel](benchmark::State& state) {
      run(state, dtype, *kernel);
    })->Unit(benchmark::kMicrosecond);
  }
});

}  // namespace
}  // namespace tessera::bench
