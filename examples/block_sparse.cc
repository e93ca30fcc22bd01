// Attention over three of eight blocks: each of 1024 query rows reads 384 keys instead of 1024.
#include <cstdio>
#include <tessera/tessera.hpp>
#include <vector>

int main() {
  const int64_t tokens = 1024, heads = 8, kv_heads = 2, dim = 64;
  std::vector<float> q(tokens * heads * dim, 0.5f), k(tokens * kv_heads * dim, 0.25f);
  std::vector<float> v(tokens * kv_heads * dim), out(q.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / (kv_heads * dim) / 128);  // a key's block number

  const std::vector<int32_t> blocks = {0, 3, 4};  // of 128 keys each, for all queries
  tessera::block_sparse_gqa_prefill({.q = tessera::tensor(q.data(), {1, tokens, heads, dim}),
                                     .k = tessera::tensor(k.data(), {1, tokens, kv_heads, dim}),
                                     .v = tessera::tensor(v.data(), {1, tokens, kv_heads, dim}),
                                     .kv_indices = tessera::tensor(blocks.data(), {1, 1, 3}),
                                     .block_size = 128,
                                     .block_q = tokens,
                                     .out = tessera::tensor(out.data(), {1, tokens, heads, dim})});
  std::printf("the first query attends block 0: %.2f\n", out.front());
  std::printf("the last attends blocks 0, 3, 4: %.2f, their mean is %.2f\n", out.back(), (0 + 3 + 4) / 3.0);
}
