// Attention over lists of tokens: one list per row, which all heads share.
#include <algorithm>

#include "dist/call.h"
#include "ops/token_attn/check.h"
#include "ops/token_attn/rows.h"

namespace tessera::dist {
namespace {

using token_attn::Row;

// What loading and finishing a row costs, in tokens.
constexpr int64_t kRowTokens = 16;

class TokenCall final : public Call {
 public:
  explicit TokenCall(const tessera_qsa_sparse_attention_args& args) : args_(args) {}

  Status check() override {
    if (Status s = token_attn::check(args_, &p_); !s.ok()) return s;
    word.call += describe({{"query", args_.q},
                           {"token_indices", args_.token_indices},
                           {"selected_kv_indices", args_.selected_kv_indices},
                           {"gate", args_.gate},
                           {"lse", args_.lse}}) +
                 "scale " + std::to_string(p_.scale) + ", num_splits " + std::to_string(p_.splits);
    out = args_.out;
    lse = args_.lse;
    units = p_.rows.rows;
    paged = p_.pages.table != nullptr;
    table_.resize(static_cast<size_t>(token_attn::table_entries(p_)));
    token_attn::resolve(table_.data(), &p_);
    std::vector<int64_t> keys(static_cast<size_t>(p_.rows.requests), 0);
    for (int64_t r = 0; r < units; ++r) {
      const Row& row = table_[static_cast<size_t>(r)];
      requests_.push_back(row.request);
      positions_.push_back(row.limit - 1);
      word.add(static_cast<uint64_t>(row.request));
      word.add(static_cast<uint64_t>(row.limit));
      if (row.request != kNoRequest) {
        int64_t& most = keys[static_cast<size_t>(row.request)];
        most = std::max<int64_t>(most, row.limit);
      }
    }
    for (size_t b = 0; paged && b < keys.size(); ++b) word.pages.add(p_.pages, static_cast<int64_t>(b), keys[b]);
    return {};
  }

  // Rows whose list is the whole prefix go through the kernel of block attention, which is 1.6 times as fast.
  int64_t work(int64_t unit) const override {
    const Row& row = table_[static_cast<size_t>(unit)];
    return (row.dense ? row.count * 5 / 8 : row.count) + kRowTokens;
  }
  int64_t first_row(int64_t unit) const override { return unit; }

  Status run(int64_t first, int64_t end, const tessera_tensor& to, const tessera_tensor& to_lse,
             const tessera_context& context) const override {
    if (args_.q.ndim == 3) {
      auto a = args_;
      const auto rows = [&](const tessera_tensor& t) { return narrow(t, 0, first, end - first); };
      a.q = rows(a.q);
      a.token_indices = rows(a.token_indices);
      a.selected_kv_indices = rows(a.selected_kv_indices);
      a.gate = rows(a.gate);
      if (!p_.physical) {
        a.cu_seqlens_q = a.seq_lens_q = {};
        a.token_to_req = rows(tessera_dense(requests_.data(), TESSERA_I32, 1, &units));
        a.query_positions = rows(tessera_dense(positions_.data(), TESSERA_I32, 1, &units));
      }
      a.out = to;
      a.lse = to_lse;
      return reported(tessera_qsa_sparse_attention(&a, &context));
    }
    const int64_t rows = args_.q.shape[1];
    for (const Piece& piece : pieces(first, end, rows, 1, rows)) {
      if (Status s = run_piece(piece, first, rows, to, to_lse, context); !s.ok()) return s;
    }
    return {};
  }

 private:
  Status run_piece(const Piece& piece, int64_t first, int64_t rows, const tessera_tensor& to,
                   const tessera_tensor& to_lse, const tessera_context& context) const {
    auto a = args_;
    const auto of_requests = [&](const tessera_tensor& t) { return narrow(t, 0, piece.request, piece.requests); };
    const auto of_rows = [&](const tessera_tensor& t) { return narrow(of_requests(t), 1, piece.first, piece.rows); };
    const int64_t shape[] = {args_.q.shape[0], rows};
    a.q = of_rows(a.q);
    a.token_indices = of_rows(a.token_indices);
    a.gate = of_rows(a.gate);
    a.query_positions = of_rows(tessera_dense(positions_.data(), TESSERA_I32, 2, shape));
    if (!paged) {
      a.k = of_requests(a.k);
      a.v = of_requests(a.v);
    }
    a.page_table = of_requests(a.page_table);
    a.seq_lens_k = of_requests(a.seq_lens_k);
    std::vector<int32_t> counts;  // of the rows that count, those of the piece
    for (int64_t b = piece.request; given(a.seq_lens_q) && b < piece.request + piece.requests; ++b) {
      const int64_t all = static_cast<const int32_t*>(args_.seq_lens_q.data)[b * args_.seq_lens_q.stride[0]];
      counts.push_back(static_cast<int32_t>(std::max<int64_t>(all - piece.first, 0)));
    }
    if (given(a.seq_lens_q)) a.seq_lens_q = tessera_dense(counts.data(), TESSERA_I32, 1, &piece.requests);
    a.out = batch_of(to, first, piece, rows);
    a.lse = batch_of(to_lse, first, piece, rows);
    return reported(tessera_qsa_sparse_attention(&a, &context));
  }

  tessera_qsa_sparse_attention_args args_;
  token_attn::Problem p_ = {};
  std::vector<Row> table_;
  std::vector<int32_t> requests_, positions_;  // [R]
};

}  // namespace

std::unique_ptr<Call> call_of(const tessera_qsa_sparse_attention_args& args) {
  return std::make_unique<TokenCall>(args);
}

}  // namespace tessera::dist
