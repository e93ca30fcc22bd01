// The attention of one Qwen4-Exp layer for a mixed batch over paged caches: the first request decodes its token 3,000, the
// second reads a prompt of 40. Write keys and values, complete compressed keys, select tokens, attend and gate. Numbers
// that look random stand for what the projections, norms and RoPE of queries and keys give.
#include <cmath>
#include <cstdio>
#include <tessera/tessera.hpp>
#include <vector>

namespace {

constexpr int64_t kRequests = 2, kHeads = 24, kKvHeads = 2, kDim = 256, kIndexHeads = 4, kIndexDim = 128;
constexpr int64_t kBlock = 4, kTopk = 512, kWidth = kTopk * kBlock + kBlock - 1;
constexpr int64_t kPage = 64, kMaxPages = 47,
                  kPages = 50;  // a page has kPage tokens, and kPage / kBlock compressed keys
constexpr int32_t kContext[kRequests] = {3000, 40}, kNew[kRequests] = {1, 40};

std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::vector<float> all(static_cast<size_t>(count));
  for (float& x : all) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) / (1 << 23) - 1.0f;
  }
  return all;
}

using tessera::tensor;

struct Caches {
  std::vector<float> k = std::vector<float>(kPages * kPage * kKvHeads * kDim), v = k;
  std::vector<float> index = std::vector<float>(kPages * kPage / kBlock * kIndexDim);
  std::vector<float> ring = std::vector<float>(kRequests * (kBlock - 1) * kIndexDim);  // raw keys of open blocks
  std::vector<float> norm_weight = numbers(kIndexDim, 1);
  std::vector<int32_t> table = std::vector<int32_t>(kRequests * kMaxPages, -1);

  Caches() {
    for (int32_t i = 0; i < kMaxPages; ++i) table[static_cast<size_t>(i)] = 49 - i;
    table[kMaxPages] = 1;
  }

  // Takes in `rows` more tokens of each request, of which there have been `lens`.
  void append(const std::vector<int32_t>& lens, const std::vector<int32_t>& rows) {
    std::vector<int32_t> slots, bounds = {0};
    for (size_t b = 0; b < kRequests; ++b) {
      for (int32_t t = lens[b]; t < lens[b] + rows[b]; ++t) {
        slots.push_back(
            static_cast<int32_t>(table[b * kMaxPages + static_cast<size_t>(t / kPage)] * kPage + t % kPage));
      }
      bounds.push_back(bounds.back() + rows[b]);
    }
    const auto n = static_cast<int64_t>(slots.size());
    const auto new_k = numbers(n * kKvHeads * kDim, 2), new_v = numbers(n * kKvHeads * kDim, 3);
    const auto raw = numbers(n * kIndexDim, 4);
    // append_kv wants heads before slots: a view.
    const auto heads_first = [](std::vector<float>& cache) {
      return tensor(cache.data(), {kPages, kKvHeads, kPage, kDim}, {kPage * kKvHeads * kDim, kDim, kKvHeads * kDim, 1});
    };
    tessera::append_kv({.k = tensor(new_k.data(), {n, kKvHeads, kDim}),
                        .v = tensor(new_v.data(), {n, kKvHeads, kDim}),
                        .slots = tensor(slots.data(), {n}),
                        .k_cache = heads_first(k),
                        .v_cache = heads_first(v)});
    tessera::qsa_append_keys({.raw_keys = tensor(raw.data(), {n, kIndexDim}),
                              .cu_seqlens_q = tensor(bounds.data(), {kRequests + 1}),
                              .seq_lens = tensor(lens.data(), {kRequests}),
                              .rule = {.norm_weight = tensor(norm_weight.data(), {kIndexDim})},
                              .ring = tensor(ring.data(), {kRequests, kBlock - 1, kIndexDim}),
                              .cache = tensor(index.data(), {kPages, kPage / kBlock, kIndexDim}),
                              .page_table = tensor(table.data(), {kRequests, kMaxPages})});
  }
};

}  // namespace

int main() {
  Caches caches;
  caches.append({0, 0}, {kContext[0] - kNew[0], 0});  // steps of the past

  // (1) The step's keys, values and raw index keys.
  caches.append({kContext[0] - kNew[0], 0}, {kNew[0], kNew[1]});

  // (2) The tokens of the 512 best blocks that a row sees, and those of the open block.
  constexpr int64_t kRows = kNew[0] + kNew[1];
  std::vector<int32_t> bounds = {0, kNew[0], kRows}, positions = {kContext[0] - 1};
  for (int32_t t = 0; t < kNew[1]; ++t) positions.push_back(t);
  const auto index_q = numbers(kRows * kIndexHeads * kIndexDim, 5);
  std::vector<int32_t> tokens(kRows * kWidth);
  const auto table = tensor(caches.table.data(), {kRequests, kMaxPages}), lens = tensor(kContext, {kRequests});
  tessera::qsa_select({.index = {.q = tensor(index_q.data(), {kRows, kIndexHeads, kIndexDim}),
                                 .k = tensor(caches.index.data(), {kPages, kPage / kBlock, kIndexDim}),
                                 .cu_seqlens_q = tensor(bounds.data(), {kRequests + 1}),
                                 .query_positions = tensor(positions.data(), {kRows}),
                                 .seq_lens_k = lens,
                                 .page_table = table},
                       .topk = kTopk,
                       .token_indices = tensor(tokens.data(), {kRows, kWidth})});

  // (3) Attention over them, times the sigmoid of the gate, and the same from the reference.
  const auto q = numbers(kRows * kHeads * kDim, 6), gate = numbers(kRows * kHeads * kDim, 7);
  std::vector<float> out(q.size()), expected(q.size());
  tessera::QsaSparseAttention args = {.q = tensor(q.data(), {kRows, kHeads, kDim}),
                                      .k = tensor(caches.k.data(), {kPages, kPage, kKvHeads, kDim}),
                                      .v = tensor(caches.v.data(), {kPages, kPage, kKvHeads, kDim}),
                                      .token_indices = tensor(tokens.data(), {kRows, kWidth}),
                                      .cu_seqlens_q = tensor(bounds.data(), {kRequests + 1}),
                                      .query_positions = tensor(positions.data(), {kRows}),
                                      .seq_lens_k = lens,
                                      .page_table = table,
                                      .gate = tensor(gate.data(), {kRows, kHeads, kDim}),
                                      .out = tensor(out.data(), {kRows, kHeads, kDim})};
  tessera::qsa_sparse_attention(args);
  args.out = tensor(expected.data(), {kRows, kHeads, kDim});
  tessera::qsa_sparse_attention(args, {.backend = TESSERA_BACKEND_REFERENCE});

  float worst = 0;
  for (size_t i = 0; i < out.size(); ++i) worst = std::fmax(worst, std::fabs(out[i] - expected[i]));
  std::printf("the decoded row's tokens: %d %d %d %d ... %d\n", tokens[0], tokens[1], tokens[2], tokens[3],
              tokens[kWidth - kBlock]);
  std::printf("largest difference from the reference: %g\n", static_cast<double>(worst));
  return worst < 1e-4f && tokens[kWidth - kBlock] >= 0 ? 0 : 1;
}
