// One decode step of a MiniMax-M3 layer for two requests over paged caches: write the new key and value, select 16 blocks
// per KV head, attend. The first request has 5,000 tokens, the second 300, so all its blocks are selected.
#include <cmath>
#include <cstdio>
#include <tessera/tessera.hpp>
#include <vector>

namespace {

constexpr int64_t kRequests = 2, kHeads = 64, kKvHeads = 4, kDim = 128, kBlock = 128, kPage = 128, kTopk = 16;
constexpr int64_t kMaxPages = 40, kPages = 48;

// Numbers that look random.
std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::vector<float> all(static_cast<size_t>(count));
  for (float& x : all) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) / (1 << 23) - 1.0f;
  }
  return all;
}

}  // namespace

int main() {
  using tessera::tensor;
  // The caches of one layer: [P, Hkv, ps, D], and one index key per token.
  auto k_cache = numbers(kPages * kKvHeads * kPage * kDim, 1), v_cache = numbers(kPages * kKvHeads * kPage * kDim, 2);
  auto index_cache = numbers(kPages * kPage * kDim, 3);
  std::vector<int32_t> table(kRequests * kMaxPages, -1), context = {5000, 300};
  for (int32_t i = 0; i < 40; ++i) table[static_cast<size_t>(i)] = 47 - i;                  // 40 pages
  for (int32_t i = 0; i < 3; ++i) table[static_cast<size_t>(kMaxPages + i)] = (5 * i) % 8;  // 3 pages

  // (1) The step's key and value go to the slots of the last tokens.
  const auto k = numbers(kRequests * kKvHeads * kDim, 4), v = numbers(kRequests * kKvHeads * kDim, 5);
  const auto index_k = numbers(kRequests * kDim, 6);
  for (int64_t b = 0; b < kRequests; ++b) {
    const int64_t last = context[static_cast<size_t>(b)] - 1;
    const int64_t page = table[static_cast<size_t>(b * kMaxPages + last / kPage)], slot = last % kPage;
    for (int64_t d = 0; d < kDim; ++d) {
      index_cache[static_cast<size_t>((page * kPage + slot) * kDim + d)] = index_k[static_cast<size_t>(b * kDim + d)];
      for (int64_t h = 0; h < kKvHeads; ++h) {
        const auto to = static_cast<size_t>(((page * kKvHeads + h) * kPage + slot) * kDim + d);
        const auto from = static_cast<size_t>((b * kKvHeads + h) * kDim + d);
        k_cache[to] = k[from];
        v_cache[to] = v[from];
      }
    }
  }

  // (2) 16 blocks for each request and KV head.
  const tessera::Sequences requests = {.seqlen_q = 1,
                                       .page_table = tensor(table.data(), {kRequests, kMaxPages}),
                                       .seqused_k = tensor(context.data(), {kRequests})};
  const auto index_q = numbers(kRequests * kKvHeads * kDim, 7);
  std::vector<int32_t> blocks(kKvHeads * kRequests * kTopk);
  const tessera::Tensor lists = tensor(blocks.data(), {kKvHeads, kRequests, kTopk});
  tessera::msa_select({.index = {.q = tensor(index_q.data(), {kRequests, kKvHeads, kDim}),
                                 .k = tensor(index_cache.data(), {kPages, 1, kPage, kDim}),
                                 .sequences = requests,
                                 .block_size = kBlock},
                       .topk = kTopk,
                       .indices = lists});

  // (3) Attention over them, and the same from the reference.
  const auto q = numbers(kRequests * kHeads * kDim, 8);
  std::vector<float> out(q.size()), expected(q.size());
  tessera::MsaSparseAttention args = {.q = tensor(q.data(), {kRequests, kHeads, kDim}),
                                      .k = tensor(k_cache.data(), {kPages, kKvHeads, kPage, kDim}),
                                      .v = tensor(v_cache.data(), {kPages, kKvHeads, kPage, kDim}),
                                      .q2k_indices = lists,
                                      .sequences = requests,
                                      .block_size = kBlock,
                                      .out = tensor(out.data(), {kRequests, kHeads, kDim})};
  tessera::msa_sparse_attention(args);
  args.out = tensor(expected.data(), {kRequests, kHeads, kDim});
  tessera::msa_sparse_attention(args, {.backend = TESSERA_BACKEND_REFERENCE});

  float worst = 0;
  for (size_t i = 0; i < out.size(); ++i) worst = std::fmax(worst, std::fabs(out[i] - expected[i]));
  std::printf("blocks of request 0, KV head 0:");
  for (int64_t i = 0; i < kTopk; ++i) std::printf(" %d", blocks[static_cast<size_t>(i)]);
  std::printf("\nlargest difference from the reference: %g\n", static_cast<double>(worst));
  return worst < 1e-4f ? 0 : 1;
}
