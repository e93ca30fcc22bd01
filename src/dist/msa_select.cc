// Blocks of keys.
#include <algorithm>
#include <utility>

#include "dist/select.h"
#include "dist/selection.h"
#include "ops/block_max/check.h"
#include "ops/layout.h"

namespace tessera::dist {
namespace {

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

}  // namespace

std::unique_ptr<ShardedWork> selection(const tessera_msa_select_args& args, const tessera_context& context) {
  return std::make_unique<MsaSelection>(args, context);
}

}  // namespace tessera::dist
