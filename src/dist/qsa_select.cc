// Compressed keys, each of which is a block.
#include <algorithm>

#include "dist/select.h"
#include "dist/selection.h"
#include "ops/qsa_score/check.h"
#include "ops/qsa_score/rows.h"

namespace tessera::dist {
namespace {

class QsaSelection final : public Selection {
 public:
  QsaSelection(const tessera_qsa_select_args& args, const tessera_context& context) : Selection(context), args_(args) {}

  Status prepare() override {
    const tessera_qsa_index& index = args_.index;
    word.call += describe({{"q_idx", index.q}, {"weights", index.weights}});
    qsa_score::Problem p = {};
    if (Status s = qsa_score::check(args_, &p); !s.ok()) return s;
    if (p.pages.table == nullptr) return invalid("block_table is missing; context-parallel calls take keys in pages");
    if (p.codes.data != nullptr) return not_implemented("screen is for calls by one rank");
    rule_ = {p.topk, 1, 0, 0};
    block_size_ = p.visibility.block;
    word.call += "block_size " + std::to_string(block_size_) + ", topk " + std::to_string(p.topk) + ", scale " +
                 std::to_string(p.scale);
    table_.resize(static_cast<size_t>(qsa_score::table_entries(p)));
    qsa_score::resolve(table_.data(), &p);
    std::vector<int64_t> keys(static_cast<size_t>(p.rows.requests), 0);
    for (int64_t r = 0; r < p.rows.rows; ++r) {
      const qsa_score::Row& row = table_[static_cast<size_t>(r)];
      requests_.push_back(row.request);
      positions_.push_back(row.position);
      word.add(static_cast<uint64_t>(row.request));
      word.add(static_cast<uint64_t>(row.position));
      if (row.request != kNoRequest) {
        int64_t& most = keys[static_cast<size_t>(row.request)];
        most = std::max<int64_t>(most, row.end);
      }
    }
    for (size_t b = 0; b < keys.size(); ++b) word.pages.add(p.pages, static_cast<int64_t>(b), keys[b]);
    size(p.rows.rows, 1, p.most_keys);
    const int row_axes = index.q.ndim - 2;
    if (given(args_.indices)) results.emplace_back(args_.indices, row_axes);
    if (given(args_.token_indices)) results.emplace_back(args_.token_indices, row_axes);
    return {};
  }

 private:
  Status score(int64_t first, int64_t end, float* scores) const override {
    const tessera_qsa_index& index = args_.index;
    const int64_t rows = end - first;
    tessera_qsa_indexer_mqa_score_args a = {index, {}};
    if (index.q.ndim == 3) {
      const auto of_rows = [&](const tessera_tensor& t) { return narrow(t, 0, first, rows); };
      a.index.q = of_rows(index.q);
      a.index.weights = of_rows(index.weights);
      a.index.cu_seqlens_q = a.index.seq_lens_q = {};
      a.index.token_to_req = of_rows(tessera_dense(requests_.data(), TESSERA_I32, 1, &units));
      a.index.query_positions = of_rows(tessera_dense(positions_.data(), TESSERA_I32, 1, &units));
      const int64_t shape[] = {rows, blocks_};
      a.scores = tessera_dense(scores, TESSERA_F32, 2, shape);
      return reported(tessera_qsa_indexer_mqa_score(&a, &context_));
    }
    const int64_t shape[] = {index.q.shape[0], index.q.shape[1]};
    for (const Piece& piece : pieces(first, end, shape[1], 1, shape[1])) {
      const auto of_requests = [&](const tessera_tensor& t) { return narrow(t, 0, piece.request, piece.requests); };
      const auto of_rows = [&](const tessera_tensor& t) { return narrow(of_requests(t), 1, piece.first, piece.rows); };
      a.index.q = of_rows(index.q);
      a.index.weights = of_rows(index.weights);
      a.index.query_positions = of_rows(tessera_dense(positions_.data(), TESSERA_I32, 2, shape));
      a.index.seq_lens_k = of_requests(index.seq_lens_k);
      a.index.page_table = of_requests(index.page_table);
      a.index.seq_lens_q = {};  // rows that do not count have a position before the first key by now
      float* const at = scores + (piece.request * shape[1] + piece.first - first) * blocks_;
      a.scores = {at, TESSERA_F32, 3, {piece.requests, piece.rows, blocks_}, {shape[1] * blocks_, blocks_, 1}};
      if (Status s = reported(tessera_qsa_indexer_mqa_score(&a, &context_)); !s.ok()) return s;
    }
    return {};
  }

  Ranges ranges(int64_t row) const override {
    const int64_t visible = table_[static_cast<size_t>(row)].end;
    if (visible <= rule_.topk) return {0, 0, 0, visible, 0};
    return {0, 0, visible, visible, rule_.topk};
  }

  Status finish(int64_t row, int64_t count) override {
    const int64_t topk = rule_.topk;
    size_t next = 0;
    if (given(args_.indices)) {
      auto* const to = static_cast<int32_t*>(results[next++].tensor().data);
      std::copy_n(ids(row), count * topk, to + row * topk);
    }
    if (!given(args_.token_indices)) return {};
    const int64_t shape[] = {count, topk};
    const tessera_qsa_expand_blocks_args expand = {tessera_dense(ids(row), TESSERA_I32, 2, shape),
                                                   tessera_dense(positions_.data() + row, TESSERA_I32, 1, &count),
                                                   block_size_, narrow(results[next].tensor(), 0, row, count)};
    return reported(tessera_qsa_expand_blocks(&expand, &context_));
  }

  const tessera_qsa_select_args& args_;
  int64_t block_size_ = 0;
  std::vector<qsa_score::Row> table_;
  std::vector<int32_t> requests_, positions_;  // [R]
};

}  // namespace

std::unique_ptr<ShardedWork> selection(const tessera_qsa_select_args& args, const tessera_context& context) {
  return std::make_unique<QsaSelection>(args, context);
}

}  // namespace tessera::dist
