// What a call costs when there is next to nothing to compute, by executor; and what a loop on the pool costs.
#include "bench.h"
#include "runtime/executor.h"

namespace tessera::bench {
namespace {

tessera_executor executor_of(int64_t threads) {
  if (threads == 0) return {};
  return {TESSERA_EXECUTOR_THREADS, static_cast<int32_t>(threads), 0, 0, nullptr, nullptr};
}

// One query, one head, 16 keys. Threads 0: the whole pool.
void smallest_call(benchmark::State& state) {
  const Tensor q(TESSERA_BF16, {1, 1, 1, 16}), k(TESSERA_BF16, {1, 16, 1, 16}), v(TESSERA_BF16, {1, 16, 1, 16});
  const Tensor ids(TESSERA_I32, {1, 1, 1}), out(TESSERA_BF16, {1, 1, 1, 16});
  tessera_block_sparse_gqa_prefill_args args = {};
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.kv_indices = ids.view();
  args.block_size = 16;
  args.block_q = 1;
  args.out = out.view();
  tessera_context context = {};
  context.executor = executor_of(state.range(0));
  for (auto _ : state) {
    if (tessera_block_sparse_gqa_prefill(&args, &context) != TESSERA_OK) {
      return state.SkipWithError(tessera_last_error());
    }
  }
}
BENCHMARK(smallest_call)->ArgName("threads")->Arg(0)->Arg(1);

// One row, one head, one block of 16 keys in a page.
void smallest_decode(benchmark::State& state) {
  const Tensor q(TESSERA_BF16, {1, 1, 16}), k(TESSERA_BF16, {1, 1, 16, 16}), v(TESSERA_BF16, {1, 1, 16, 16});
  const Tensor ids(TESSERA_I32, {1, 1, 1}), table(TESSERA_I32, {1, 1}), out(TESSERA_BF16, {1, 1, 16});
  Tensor used(TESSERA_I32, {1});
  *used.data<int32_t>() = 16;
  tessera_msa_sparse_attention_args args = {};
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.q2k_indices = ids.view();
  args.sequences.seqlen_q = 1;
  args.sequences.page_table = table.view();
  args.sequences.seqused_k = used.view();
  args.block_size = 16;
  args.out = out.view();
  tessera_context context = {};
  context.executor = executor_of(state.range(0));
  for (auto _ : state) {
    if (tessera_msa_sparse_attention(&args, &context) != TESSERA_OK) {
      return state.SkipWithError(tessera_last_error());
    }
  }
}
BENCHMARK(smallest_decode)->ArgName("threads")->Arg(0)->Arg(1);

// One empty task per thread.
void empty_loop(benchmark::State& state) {
  const Executor executor(executor_of(state.range(0)));
  for (auto _ : state) executor.parallel_for(executor.workers(), [](int64_t, int) {});
}
BENCHMARK(empty_loop)->ArgName("threads")->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace tessera::bench
