#include "dist/select.h"

#include <algorithm>
#include <cmath>

#include "dist/call.h"
#include "ops/block_max/check.h"
#include "ops/layout.h"
#include "ops/qsa_score/check.h"
#include "ops/qsa_score/rows.h"
#include "ops/select_topk/select_topk.h"
#include "runtime/executor.h"

namespace tessera::dist {
namespace {

using select_topk::Ranges;
using select_topk::Rule;

constexpr int64_t kScoreBytes = int64_t{16} << 20;  // of a piece, on each rank

// What the two have in common. Rows are units.
class Selection : public ShardedWork {
 public:
  explicit Selection(const tessera_context& context) : context_(context) {}

  int64_t first_row(int64_t unit) const override { return unit; }

  Status compute(int64_t first, int64_t end, char* records) override {
    const int64_t rows = end - first;
    const int64_t topk = rule_.topk;
    std::vector<float> scores(static_cast<size_t>(rows * heads_ * blocks_));
    if (Status s = score(first, end, scores.data()); !s.ok()) return s;
    const int64_t shape[] = {rows, heads_, blocks_};
    const int64_t entries = record_bytes / 4;
    auto* const kept = reinterpret_cast<float*>(records);
    auto* const ids = reinterpret_cast<int32_t*>(records) + heads_ * topk;
    const tessera_topk_blocks_args best = {tessera_dense(scores.data(), TESSERA_F32, 3, shape),
                                           {ids, TESSERA_I32, 3, {rows, heads_, topk}, {entries, topk, 1}}};
    if (Status s = reported(tessera_topk_blocks(&best, &context_)); !s.ok()) return s;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < heads_ * topk; ++i) {
        const int32_t id = ids[row * entries + i];
        const int64_t at = (row * heads_ + i / topk) * blocks_ + id;
        kept[row * entries + i] = id < 0 ? -INFINITY : scores[static_cast<size_t>(at)];
      }
    }
    return {};
  }

  Status merge(int64_t row, int64_t count, std::span<char* const> records) override {
    const Executor executor(context_.executor);
    const int64_t topk = rule_.topk;
    const auto workers = static_cast<size_t>(executor.workers());
    std::vector<std::vector<float>> scores(workers, std::vector<float>(static_cast<size_t>(blocks_), -INFINITY));
    std::vector<std::vector<uint32_t>> scratch(workers, std::vector<uint32_t>(static_cast<size_t>(blocks_)));
    executor.parallel_for(
        count * heads_,
        [&](int64_t i, int worker) {
          float* const all = scores[static_cast<size_t>(worker)].data();
          const auto each = [&](const auto& use) {
            for (char* of_rank : records) {
              const char* const record = of_rank + i / heads_ * record_bytes;
              const auto* const kept = reinterpret_cast<const float*>(record) + i % heads_ * topk;
              const auto* const ids = reinterpret_cast<const int32_t*>(record) + (heads_ + i % heads_) * topk;
              for (int64_t k = 0; k < topk && ids[k] >= 0; ++k) use(ids[k], kept[k]);
            }
          };
          each([&](int32_t id, float score) { all[id] = score; });
          int32_t* const ids = ids_.data() + (row * heads_ + i) * topk;
          select_topk::write_ids(rule_, ranges(row + i / heads_), all, scratch[static_cast<size_t>(worker)].data(), ids,
                                 1);
          each([&](int32_t id, float) { all[id] = -INFINITY; });
        },
        "merge");
    return finish(row, count);
  }

 protected:
  // Scores of rows [first, end), [rows][Hi][N].
  virtual Status score(int64_t first, int64_t end, float* scores) const = 0;
  // Which blocks are in, of which some have to be ranked.
  virtual Ranges ranges(int64_t row) const = 0;
  // From ids_ to the results.
  virtual Status finish(int64_t row, int64_t count) = 0;

  void size(int64_t rows, int64_t heads, int64_t blocks) {
    units = rows;
    heads_ = heads;
    blocks_ = blocks;
    record_bytes = heads * rule_.topk * 8;
    piece_bytes = std::max<int64_t>(1, kScoreBytes / std::max<int64_t>(1, heads * blocks * 4)) * record_bytes;
    ids_.resize(static_cast<size_t>(rows * heads * rule_.topk));
  }
  const int32_t* ids(int64_t row) const { return ids_.data() + row * heads_ * rule_.topk; }

  const tessera_context& context_;
  Rule rule_ = {};
  int64_t heads_ = 0;
  int64_t blocks_ = 0;        // N: of the request that has the most
  std::vector<int32_t> ids_;  // [R][Hi][K]
};

// ---- Blocks of keys ----

class MsaSelection final : public Selection {
 public:
  MsaSelection(const tessera_msa_select_args& args, const tessera_context& context) : Selection(context), args_(args) {}

  Status prepare() override {
    const tessera_msa_index& index = args_.index;
    word.call += describe({{"q", index.q}});
    block_max::Problem p = {};
    if (Status s = block_max::check(args_, &p); !s.ok()) return s;
    if (p.pages.table == nullptr) return invalid("page_table is missing; context-parallel calls take keys in pages");
    if (p.pages.page_size % p.block != 0) {
      return invalid("pages of " + std::to_string(p.pages.page_size) + " keys are no multiple of block_size, " +
                     std::to_string(p.block) + "; context-parallel selection takes whole blocks");
    }
    rule_ = p.rule;
    packed_ = index.q.ndim == 3;
    rows_of_request_ = packed_ ? 0 : index.q.shape[1];
    const int64_t rows = packed_ ? index.q.shape[0] : index.q.shape[0] * rows_of_request_;
    word.call += "block_size " + std::to_string(p.block) + ", topk " + std::to_string(rule_.topk) + ", local_blocks " +
                 std::to_string(rule_.local_blocks) + ", init_blocks " + std::to_string(rule_.init_blocks) +
                 (p.reduce ? ", reduce_heads" : "");
    int64_t taken = 0, blocks = 0;
    owner_.assign(static_cast<size_t>(rows), -1);
    for (int64_t b = 0; b < p.sequences.count; ++b) {
      const Sequence seq = resolve(p.sequences, b, &taken);
      requests_.push_back(seq);
      blocks = std::max(blocks, ceil_div(seq.keys, p.block));
      word.pages.add(p.pages, b, seq.keys);
      for (int64_t x : {seq.row, seq.rows, seq.keys, seq.offset}) word.add(static_cast<uint64_t>(x));
      const int64_t first = packed_ ? seq.row : b * rows_of_request_;
      std::fill_n(owner_.begin() + first, seq.rows, static_cast<int32_t>(b));
    }
    size(rows, p.reduce ? 1 : p.heads, blocks);
    // [B, Hi, Sq, K] and [Hi, R, K] by rows.
    tessera_tensor ids = args_.indices;
    std::swap(ids.shape[ids.ndim - 3], ids.shape[ids.ndim - 2]);
    std::swap(ids.stride[ids.ndim - 3], ids.stride[ids.ndim - 2]);
    results.emplace_back(ids, packed_ ? 1 : 2);
    return {};
  }

 private:
  Status score(int64_t first, int64_t end, float* scores) const override {
    const int64_t row = heads_ * blocks_;
    if (packed_) {
      for (const PackedPiece& piece : packed_pieces(requests_, first, end)) {
        tessera_msa_block_scores_args a = {args_.index, {}};
        a.index.q = narrow(a.index.q, 0, piece.row, piece.end - piece.row);
        a.index.sequences = piece.of(args_.index.sequences);
        a.scores = {scores + (piece.row - first) * row,
                    TESSERA_F32,
                    3,
                    {heads_, piece.end - piece.row, blocks_},
                    {blocks_, row, 1}};
        if (Status s = reported(tessera_msa_block_scores(&a, &context_)); !s.ok()) return s;
      }
      return {};
    }
    for (const Piece& piece : pieces(first, end, rows_of_request_, 1, rows_of_request_)) {
      tessera_msa_block_scores_args a = {args_.index, {}};
      tessera_sequences& s = a.index.sequences;
      a.index.q = narrow(narrow(a.index.q, 0, piece.request, piece.requests), 1, piece.first, piece.rows);
      s.page_table = narrow(s.page_table, 0, piece.request, piece.requests);
      s.seqused_k = narrow(s.seqused_k, 0, piece.request, piece.requests);
      std::vector<int32_t> offsets;
      for (int64_t b = piece.request; b < piece.request + piece.requests; ++b) {
        offsets.push_back(static_cast<int32_t>(requests_[static_cast<size_t>(b)].offset + piece.first));
      }
      s.q_offset = tessera_dense(offsets.data(), TESSERA_I32, 1, &piece.requests);
      float* const at = scores + (piece.request * rows_of_request_ + piece.first - first) * row;
      a.scores = {
          at, TESSERA_F32, 4, {piece.requests, heads_, piece.rows, blocks_}, {rows_of_request_ * row, blocks_, row, 1}};
      if (Status status = reported(tessera_msa_block_scores(&a, &context_)); !status.ok()) return status;
    }
    return {};
  }

  Ranges ranges(int64_t row) const override {
    const int32_t b = owner_[static_cast<size_t>(row)];
    if (b < 0) return {};
    const Sequence& seq = requests_[static_cast<size_t>(b)];
    const int64_t position = seq.offset + row - (packed_ ? seq.row : b * rows_of_request_);
    return select_topk::ranges(rule_, position, position, seq.keys);
  }

  Status finish(int64_t row, int64_t count) override {
    const int64_t bytes = results[0].row_bytes();
    std::copy_n(reinterpret_cast<const char*>(ids(row)), count * bytes,
                static_cast<char*>(results[0].tensor().data) + row * bytes);
    return {};
  }

  const tessera_msa_select_args& args_;
  bool packed_ = false;
  int64_t rows_of_request_ = 0;  // of a batch
  std::vector<Sequence> requests_;
  std::vector<int32_t> owner_;  // of each row, or -1
};

// ---- Compressed keys, each of which is a block ----

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

std::unique_ptr<ShardedWork> selection(const tessera_msa_select_args& args, const tessera_context& context) {
  return std::make_unique<MsaSelection>(args, context);
}
std::unique_ptr<ShardedWork> selection(const tessera_qsa_select_args& args, const tessera_context& context) {
  return std::make_unique<QsaSelection>(args, context);
}

}  // namespace tessera::dist
