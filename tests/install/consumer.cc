// The same in C++20. The pool's threads run, and a refusal is an exception.
#include <cstdio>
#include <string>
#include <tessera/tessera.hpp>
#include <vector>

int main() {
  const std::vector<float> q(8, 0.0f), k = {1, 2}, v = {10, 20};
  const std::vector<int32_t> blocks = {0};
  std::vector<float> out(8);
  tessera::BlockSparseGqaPrefill args = {.q = tessera::tensor(q.data(), {1, 8, 1, 1}),
                                         .k = tessera::tensor(k.data(), {1, 2, 1, 1}),
                                         .v = tessera::tensor(v.data(), {1, 2, 1, 1}),
                                         .kv_indices = tessera::tensor(blocks.data(), {1, 1, 1}),
                                         .block_q = 8,
                                         .causal = false,
                                         .out = tessera::tensor(out.data(), {1, 8, 1, 1})};
  tessera::block_sparse_gqa_prefill(args, {.executor = tessera::threads(2)});
  if (out != std::vector<float>(8, 15.0f)) return 1;
  args.kv_indices = {};
  try {
    tessera::block_sparse_gqa_prefill(args);
  } catch (const tessera::Error& e) {
    std::printf("%s\n", e.message().c_str());
    return e.message().find("kv_indices") == std::string::npos ? 2 : 0;
  }
  return 3;
}
