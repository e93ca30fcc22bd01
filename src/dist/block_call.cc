// Attention over lists of blocks: one list per query block (a batch), or per row and KV head (packed rows).
#include <algorithm>

#include "dist/call.h"
#include "ops/block_attn/block_attn.h"
#include "ops/block_attn/check.h"
#include "ops/block_attn/plan.h"
#include "ops/layout.h"

namespace tessera::dist {
namespace {

using block_attn::Request;

// What loading and finishing a row costs, in keys.
constexpr int64_t kRowKeys = 16;

template <class Args>
class BlockCall : public Call {
 public:
  explicit BlockCall(const Args& args) : args_(args) {}

  Status check() override {
    if (Status s = block_attn::check(args_, &p_); !s.ok()) return s;
    paged = p_.pages.table != nullptr;
    out = args_.out;
    lse = args_.lse;
    int64_t taken = 0;
    for (int64_t b = 0; b < p_.sequences.count; ++b) {
      Request r = {};
      r.seq = resolve(p_.sequences, b, &taken);
      r.b = b;
      r.blocks = ceil_div(r.seq.keys, p_.block);
      for (int64_t x : {r.seq.row, r.seq.rows, r.seq.keys, r.seq.offset}) word.add(static_cast<uint64_t>(x));
      if (paged) word.pages.add(p_.pages, b, r.seq.keys);
      requests_.push_back(r);
    }
    word.call += "block_size " + std::to_string(p_.block) + ", block_q " + std::to_string(p_.block_q) + ", scale " +
                 std::to_string(p_.scale) + (p_.causal ? ", causal" : ", not causal");
    return {};
  }

 protected:
  // Of query block `list` of a request.
  int64_t list_work(const Request& r, int64_t list) const {
    const int64_t begin = list * p_.block_q;
    const int64_t rows = std::min(p_.block_q, r.seq.rows - begin);
    const int64_t sees = visible_keys(r.seq, p_.causal, begin + rows / 2);  // halfway down the diagonal
    const int64_t heads = p_.ids_head == 0 ? 1 : p_.kv_heads;
    int64_t keys = 0;
    for (int64_t head = 0; head < heads; ++head) {
      const int32_t* ids = block_attn::ids_of(p_, r, head, list);
      for (int64_t w = 0; w < p_.width; ++w) {
        const int64_t id = ids[w * p_.ids_entry];
        if (id >= 0 && id < r.blocks) keys += std::clamp<int64_t>(sees - id * p_.block, 0, p_.block);
      }
    }
    return rows * (keys * (p_.kv_heads / heads) + kRowKeys * p_.kv_heads);
  }

  Args args_;
  block_attn::Problem p_ = {};
  std::vector<Request> requests_;
};

class PrefillCall final : public BlockCall<tessera_block_sparse_gqa_prefill_args> {
 public:
  using BlockCall::BlockCall;

  Status check() override {
    word.call += describe({{"q", args_.q}, {"kv_indices", args_.kv_indices}, {"lse", args_.lse}});
    if (Status s = BlockCall::check(); !s.ok()) return s;
    rows_ = args_.q.shape[1];
    lists_ = ceil_div(rows_, p_.block_q);
    units = p_.sequences.count * lists_;
    return {};
  }
  int64_t work(int64_t unit) const override {
    return list_work(requests_[static_cast<size_t>(unit / lists_)], unit % lists_);
  }
  int64_t first_row(int64_t unit) const override {
    return unit == units ? args_.q.shape[0] * rows_ : unit / lists_ * rows_ + unit % lists_ * p_.block_q;
  }

  Status run(int64_t first, int64_t end, const tessera_tensor& to, const tessera_tensor& to_lse,
             const tessera_context& context) const override {
    for (const Piece& piece : pieces(first, end, lists_, p_.block_q, rows_)) {
      const auto of_requests = [&](const tessera_tensor& t) { return narrow(t, 0, piece.request, piece.requests); };
      auto a = args_;
      a.q = narrow(of_requests(a.q), 1, piece.first, piece.rows);
      if (!paged) {
        a.k = of_requests(a.k);
        a.v = of_requests(a.v);
      }
      a.page_table = of_requests(a.page_table);
      a.seqused_k = of_requests(a.seqused_k);
      a.kv_indices = narrow(of_requests(a.kv_indices), a.kv_indices.ndim - 2, piece.first / p_.block_q,
                            ceil_div(piece.rows, p_.block_q));
      std::vector<int32_t> offsets;
      for (int64_t b = piece.request; b < piece.request + piece.requests; ++b) {
        offsets.push_back(static_cast<int32_t>(requests_[static_cast<size_t>(b)].seq.offset + piece.first));
      }
      a.q_offset = tessera_dense(offsets.data(), TESSERA_I32, 1, &piece.requests);
      a.out = batch_of(to, first_row(first), piece, rows_);
      a.lse = batch_of(to_lse, first_row(first), piece, rows_);
      if (Status s = reported(tessera_block_sparse_gqa_prefill(&a, &context)); !s.ok()) return s;
    }
    return {};
  }

 private:
  int64_t rows_ = 0;   // Sq
  int64_t lists_ = 0;  // nQ
};

class MsaCall final : public BlockCall<tessera_msa_sparse_attention_args> {
 public:
  using BlockCall::BlockCall;

  Status check() override {
    word.call += describe({{"q", args_.q}, {"q2k_indices", args_.q2k_indices}, {"lse", args_.lse}});
    if (Status s = BlockCall::check(); !s.ok()) return s;
    units = args_.q.shape[0];
    owner_.assign(static_cast<size_t>(units), -1);
    for (const Request& r : requests_) {
      std::fill_n(owner_.begin() + r.seq.row, r.seq.rows, static_cast<int32_t>(r.b));
    }
    return {};
  }
  int64_t work(int64_t unit) const override {
    const int32_t b = owner_[static_cast<size_t>(unit)];
    if (b < 0) return 0;
    const Request& r = requests_[static_cast<size_t>(b)];
    return list_work(r, unit - r.seq.row);
  }
  int64_t first_row(int64_t unit) const override { return unit; }

  Status run(int64_t first, int64_t end, const tessera_tensor& to, const tessera_tensor& to_lse,
             const tessera_context& context) const override {
    std::vector<Sequence> requests;
    for (const Request& r : requests_) requests.push_back(r.seq);
    for (const PackedPiece& piece : packed_pieces(requests, first, end)) {
      const int64_t rows = piece.end - piece.row;
      auto a = args_;
      a.q = narrow(a.q, 0, piece.row, rows);
      a.q2k_indices = narrow(a.q2k_indices, 1, piece.row, rows);
      a.sequences = piece.of(args_.sequences);
      a.out = narrow(to, 0, piece.row - first, rows);
      a.lse = narrow(to_lse, 0, piece.row - first, rows);
      if (Status s = reported(tessera_msa_sparse_attention(&a, &context)); !s.ok()) return s;
    }
    return {};
  }

 private:
  std::vector<int32_t> owner_;  // [R]: the request of each row, or -1
};

}  // namespace

std::unique_ptr<Call> call_of(const tessera_block_sparse_gqa_prefill_args& args) {
  return std::make_unique<PrefillCall>(args);
}
std::unique_ptr<Call> call_of(const tessera_msa_sparse_attention_args& args) { return std::make_unique<MsaCall>(args); }

}  // namespace tessera::dist
