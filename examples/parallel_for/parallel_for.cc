// A kernel of a host that lends its threads through a callback, in the manner of ONNX Runtime: the kernel's context has
// parallel_for(fn, total, num_batch, user_data) and scratch memory, and nothing else may run or be allocated.
#include <cstdio>
#include <tessera/tessera.hpp>
#include <thread>
#include <vector>

// ---- The host's side -------------------------------------------------------------------------------------------------

struct KernelContext {
  static constexpr int32_t kThreads = 4;

  // fn(user_data, i) for every i in [0, total); num_batch 0: as many batches as the host likes.
  static void parallel_for(void (*fn)(void*, size_t), size_t total, size_t /*num_batch*/, void* user_data) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < total; ++i) threads.emplace_back(fn, user_data, i);
    for (std::thread& thread : threads) thread.join();
  }
  void* scratch(size_t bytes) {  // at a multiple of 64 bytes
    memory.resize(bytes / sizeof(Line) + 1);
    return memory.data();
  }

  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> memory;
};

// ---- The kernel ------------------------------------------------------------------------------------------------------

// The host's callback takes size_t, the library's int32_t; so the pair that body needs travels as user data.
struct Task {
  void (*body)(void* arg, int32_t i);
  void* arg;
};

void run_on_host(void* host, int32_t n, void (*body)(void* arg, int32_t i), void* arg) {
  Task task = {body, arg};
  const auto call = [](void* user_data, size_t i) {
    const Task& t = *static_cast<Task*>(user_data);
    t.body(t.arg, static_cast<int32_t>(i));
  };
  static_cast<KernelContext*>(host)->parallel_for(call, static_cast<size_t>(n), 0, &task);
}

void compute(KernelContext& kernel, const tessera_block_sparse_gqa_prefill_args& args) {
  tessera_context context = {};
  context.executor.kind = TESSERA_EXECUTOR_PARALLEL_FOR;
  context.executor.num_threads = KernelContext::kThreads;
  context.executor.parallel_for = run_on_host;
  context.executor.host = &kernel;
  size_t bytes = 0;
  tessera::throw_if_failed(tessera_block_sparse_gqa_prefill_workspace_size(&args, &context, &bytes));
  context.workspace = kernel.scratch(bytes);
  context.workspace_bytes = bytes;
  tessera::throw_if_failed(tessera_block_sparse_gqa_prefill(&args, &context));
}

int main() {
  const int64_t tokens = 512, heads = 8, kv_heads = 2, dim = 64;
  std::vector<float> q(tokens * heads * dim), k(tokens * kv_heads * dim), v(k.size()), out(q.size()),
      expected(q.size());
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 23) / 11.0f - 1.0f;
  for (size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i % 17) / 8.0f - 1.0f, v[i] = k[i] * k[i];
  const std::vector<int32_t> blocks = {0, 2, 3};  // of 128 keys each, for all queries

  tessera::BlockSparseGqaPrefill args = {.q = tessera::tensor(q.data(), {1, tokens, heads, dim}),
                                         .k = tessera::tensor(k.data(), {1, tokens, kv_heads, dim}),
                                         .v = tessera::tensor(v.data(), {1, tokens, kv_heads, dim}),
                                         .kv_indices = tessera::tensor(blocks.data(), {1, 1, 3}),
                                         .block_q = tokens,
                                         .out = tessera::tensor(out.data(), {1, tokens, heads, dim})};
  KernelContext kernel;
  compute(kernel, args.c());
  args.out = tessera::tensor(expected.data(), {1, tokens, heads, dim});
  tessera::block_sparse_gqa_prefill(args);  // on the library's own threads
  std::printf("the host's threads and the library's give the same bits: %s\n", out == expected ? "yes" : "NO");
  return out == expected ? 0 : 1;
}
