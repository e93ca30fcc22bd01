// What a host that calls in parts may rely on when it sizes its memory before: all parts of a call need the same, and
// requests with fewer keys need no more, so that a plan for the longest serves for all.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/tessera.hpp"

namespace tessera {
namespace {

constexpr int64_t kPage = 48, kMaxPages = 400, kKeys = kPage * kMaxPages, kDim = 40;

// Two requests over paged keys, of which the first has `rows` rows and the second one. Only lengths and tables are read.
struct Requests {
  explicit Requests(int32_t n) : rows(n), cu_rows{0, n, n + 1}, data(static_cast<size_t>((n + 1) * 8 * kDim)) {}

  Sequences sequences() const {
    return {.cu_seqlens_q = tensor(cu_rows.data(), {3}),
            .page_table = tensor(table.data(), {2, kMaxPages}),
            .seqused_k = tensor(lens.data(), {2})};
  }
  Tensor query(int64_t heads) const { return tensor(data.data(), {rows + 1, heads, kDim}); }
  Tensor cache(int64_t heads) const { return tensor(pages.data(), {3, heads, kPage, kDim}); }
  Tensor list(Sizes shape) const { return tensor(ids.data(), shape); }

  int64_t rows;
  std::vector<int32_t> cu_rows;
  std::vector<float> data, pages = std::vector<float>(3 * 2 * kPage * kDim), out = data;
  std::vector<int32_t> table = std::vector<int32_t>(2 * kMaxPages), lens = {0, 0}, ids = std::vector<int32_t>(100000);
};

template <class Size>
void expect_enough_for_all(const std::string& name, Requests& requests, const Size& size) {
  constexpr int32_t kParts = 4;
  size_t before = 0;
  for (const int64_t keys : {0, 1, 5, 47, 48, 127, 128, 129, 700, 2048, 2049, 5000, 9000, 16384, 19200}) {
    requests.lens = {static_cast<int32_t>(keys), static_cast<int32_t>(keys / 3)};
    const size_t bytes = size({.executor = part(0, kParts)});
    EXPECT_GE(bytes, before) << name << ", " << requests.rows << " rows, " << keys << " keys";
    for (int32_t i = 1; i < kParts; ++i) EXPECT_EQ(size({.executor = part(i, kParts)}), bytes) << name;
    before = bytes;
  }
}

TEST(Workspace, APlanForTheLongestServesAllInParts) {
  static_assert(kKeys == 19200);
  for (const int32_t rows : {1, 7, 130}) {
    Requests r(rows);
    const int64_t all = rows + 1;
    expect_enough_for_all("msa_sparse_attention", r, [&](const Context& context) {
      return msa_sparse_attention_workspace_size({.q = r.query(8),
                                                  .k = r.cache(2),
                                                  .v = r.cache(2),
                                                  .q2k_indices = r.list({2, all, 20}),
                                                  .sequences = r.sequences(),
                                                  .out = tensor(r.out.data(), {all, 8, kDim})},
                                                 context);
    });
    const MsaIndex index = {.q = r.query(2), .k = r.cache(1), .sequences = r.sequences()};
    expect_enough_for_all("msa_select", r, [&](const Context& context) {
      return msa_select_workspace_size({.index = index, .topk = 16, .indices = r.list({2, all, 16})}, context);
    });
    const QsaIndex compressed = {.q = r.query(4),
                                 .k = tensor(r.pages.data(), {3, kPage, kDim}),
                                 .cu_seqlens_q = tensor(r.cu_rows.data(), {3}),
                                 .seq_lens_k = tensor(r.lens.data(), {2}),
                                 .page_table = tensor(r.table.data(), {2, kMaxPages})};
    expect_enough_for_all("qsa_select", r, [&](const Context& context) {
      return qsa_select_workspace_size({.index = compressed, .topk = 64, .indices = r.list({all, 64})}, context);
    });
    expect_enough_for_all("qsa_sparse_attention", r, [&](const Context& context) {
      return qsa_sparse_attention_workspace_size({.q = r.query(8),
                                                  .k = tensor(r.pages.data(), {3, kPage, 2, kDim}),
                                                  .v = tensor(r.pages.data(), {3, kPage, 2, kDim}),
                                                  .token_indices = r.list({all, 300}),
                                                  .cu_seqlens_q = tensor(r.cu_rows.data(), {3}),
                                                  .seq_lens_k = tensor(r.lens.data(), {2}),
                                                  .page_table = tensor(r.table.data(), {2, kMaxPages}),
                                                  .out = tensor(r.out.data(), {all, 8, kDim})},
                                                 context);
    });
  }
}

}  // namespace
}  // namespace tessera
