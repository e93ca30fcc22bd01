#include "dist/attention.h"

#include <algorithm>
#include <optional>

#include "dist/outputs.h"
#include "ops/layout.h"

namespace tessera::dist {
namespace {

// A piece of fewer bytes than this goes to every rank.
constexpr int64_t kSmallBytes = int64_t{256} << 10;

struct Outputs {
  explicit Outputs(const Call& call) : out(call.out, call.out.ndim - 2) {
    if (given(call.lse)) lse.emplace(call.lse, call.lse.ndim - 1);
  }
  void finish() const {
    out.finish();
    if (lse) lse->finish();
  }
  tessera_tensor lse_tensor() const { return lse ? lse->tensor() : tessera_tensor{}; }

  Rows out;
  std::optional<Rows> lse;
};

// ---- Query-parallel ----

Status attend_rows(Call* call, const Ranks& ranks, const tessera_context& context) {
  std::vector<int64_t> bounds(static_cast<size_t>(ranks.size()) + 1);  // in units
  std::optional<Outputs> to;
  const auto units = [&](int64_t rank) -> tessera_rows {
    const int64_t first = bounds[static_cast<size_t>(rank)];
    return {first, bounds[static_cast<size_t>(rank) + 1] - first};
  };
  const auto rows = [&](int64_t rank) -> tessera_rows {
    const int64_t first = call->first_row(units(rank).first);
    return {first, call->first_row(units(rank).first + units(rank).count) - first};
  };
  Word& word = call->word;
  word.status = guarded([&]() -> Status {
    if (Status s = call->check(); !s.ok()) return s;
    std::vector<int64_t> work;
    for (int64_t unit = 0; unit < call->units; ++unit) work.push_back(call->work(unit));
    partition(work, bounds);
    for (int64_t bound : bounds) word.add(static_cast<uint64_t>(bound));
    to.emplace(*call);
    return {};
  });
  word.pages = {};
  Agreement agreement(ranks, word);
  Word done;
  if (word.status.ok()) {
    done.status = guarded([&]() -> Status {
      const tessera_rows own = rows(ranks.rank());
      const tessera_rows own_units = units(ranks.rank());
      if (own.count == 0) return {};
      return call->run(own_units.first, own_units.first + own_units.count,
                       narrow(to->out.tensor(), 0, own.first, own.count),
                       narrow(to->lse_tensor(), 0, own.first, own.count), context);
    });
  }
  if (Status s = agreement.wait(); !s.ok()) return s;

  Agreement finished(ranks, done);
  Pending out = to->out.gather(ranks, rows);
  Pending lse = to->lse ? to->lse->gather(ranks, rows) : Pending();
  Status s = finished.wait();
  out.wait();
  lse.wait();
  if (s.ok()) to->finish();
  return s;
}

// ---- Context-parallel ----

class Shards {
 public:
  Shards(Call* call, const Ranks& ranks, const tessera_context& context)
      : call_(call), ranks_(ranks), context_(context) {}

  Status attend() {
    Word& word = call_->word;
    word.status = guarded([&] { return prepare(); });
    Agreement agreement(ranks_, word);
    Word done = word.status.ok() && pieces() > 0 ? compute(0) : Word();
    if (Status s = agreement.wait(); !s.ok()) return s;
    for (int64_t i = 0; i < pieces(); ++i) {
      send(i, done);
      if (i + 1 < pieces()) done = compute(i + 1);  // while piece i travels
      if (Status s = merge(i); !s.ok()) return s;
      if (done.status.ok()) done.status = merged_;
    }
    if (small_ || ranks_.size() == 1) {
      if (!merged_.ok()) return merged_;
    } else {
      done.status = merged_;
      if (Status s = Agreement(ranks_, done).wait(); !s.ok()) return s;
    }
    for (Pending& rows : gathered_) rows.wait();
    if (to_) to_->finish();
    return {};
  }

 private:
  // A piece's partials, row by row [Hq, Dv] of out and [Hq] of lse: those of this rank, and of its part those of the others.
  struct Buffer {
    std::vector<char> own, others;
    std::optional<Agreement> word;
    Pending partials;
  };

  int64_t pieces() const { return static_cast<int64_t>(bounds_.size()) - 1; }
  tessera_rows rows(int64_t piece) const {
    const int64_t first = call_->first_row(bounds_[static_cast<size_t>(piece)]);
    return {first, call_->first_row(bounds_[static_cast<size_t>(piece) + 1]) - first};
  }
  Buffer& buffer(int64_t piece) { return buffers_[piece % 2]; }

  // Of a piece's rows, those that a rank merges.
  tessera_rows share(int64_t piece, int64_t rank) const {
    const int64_t count = rows(piece).count;
    return small_ ? tessera_rows{0, count} : even_part(count, rank, ranks_.size());
  }

  Status prepare() {
    if (Status s = call_->check(); !s.ok()) return s;
    if (!call_->paged) return invalid("page_table is missing; context-parallel calls take keys in pages");
    const tessera_tensor& out = call_->out;
    heads_ = out.shape[out.ndim - 2];
    const int64_t out_bytes = heads_ * out.shape[out.ndim - 1] * dtype_size(out.dtype);
    lse_at_ = round_up(out_bytes, 4);
    record_ = lse_at_ + heads_ * 4;
    int64_t most = 0;
    for (int64_t unit = 0; unit < call_->units;) {
      const int64_t first = unit++;
      const auto bytes = [&] { return (call_->first_row(unit) - call_->first_row(first)) * record_; };
      while (unit < call_->units && bytes() < ranks_.exchange_bytes()) ++unit;
      bounds_.push_back(unit);
      most = std::max(most, bytes());
    }
    small_ = pieces() <= 1 && most <= kSmallBytes;
    for (Buffer& b : buffers_) {
      if (&b != buffers_ && pieces() < 2) break;
      b.own.resize(static_cast<size_t>(most));
      // Parts that do not divide a piece evenly differ by a row.
      b.others.resize(static_cast<size_t>(small_ ? most * ranks_.size() : most + ranks_.size() * record_));
    }
    if (!given(call_->lse)) own_lse_.resize(static_cast<size_t>(call_->first_row(call_->units) * heads_));
    to_.emplace(*call_);
    call_->word.add(static_cast<uint64_t>(ranks_.exchange_bytes()));
    return {};
  }

  // Rows of partials as tensors.
  tessera_tensor out_of(char* records, int64_t count) const {
    const int64_t dim = call_->out.shape[call_->out.ndim - 1];
    return {records, call_->out.dtype, 3, {count, heads_, dim}, {record_ / dtype_size(call_->out.dtype), dim, 1}};
  }
  tessera_tensor lse_of(char* records, int64_t count) const {
    return {records + lse_at_, TESSERA_F32, 2, {count, heads_}, {record_ / 4, 1}};
  }

  Word compute(int64_t piece) {
    Word done;
    done.status = guarded([&] {
      char* const own = buffer(piece).own.data();
      const int64_t count = rows(piece).count;
      return call_->run(bounds_[static_cast<size_t>(piece)], bounds_[static_cast<size_t>(piece) + 1],
                        out_of(own, count), lse_of(own, count), context_);
    });
    return done;
  }

  void send(int64_t piece, const Word& done) {
    Buffer& b = buffer(piece);
    const int64_t mine = share(piece, ranks_.rank()).count;
    b.word.emplace(ranks_, done);
    b.partials = ranks_.exchange(
        b.own.data(), [&](int64_t r) { return share(piece, r); }, b.others.data(),
        [&](int64_t r) {
          return tessera_rows{r * mine, mine};
        },
        record_);
  }

  // A failure of any rank before the piece was sent. One of the merge itself is kept for the next word.
  Status merge(int64_t piece) {
    Buffer& b = buffer(piece);
    Status status = b.word->wait();
    b.partials.wait();
    if (!status.ok()) return status;
    const tessera_rows all = rows(piece);
    const tessera_rows mine = share(piece, ranks_.rank());
    merged_ = guarded([&] {
      std::vector<tessera_tensor> outs, lses;
      for (int64_t r = 0; r < ranks_.size(); ++r) {
        char* const records =
            r == ranks_.rank() ? b.own.data() + mine.first * record_ : b.others.data() + r * mine.count * record_;
        outs.push_back(out_of(records, mine.count));
        lses.push_back(lse_of(records, mine.count));
      }
      const tessera_merge_states_args args = {outs.data(), lses.data(), ranks_.size(),
                                              narrow(to_->out.tensor(), 0, all.first + mine.first, mine.count),
                                              narrow(lse_rows(), 0, all.first + mine.first, mine.count)};
      return reported(tessera_merge_states(&args, &context_));
    });
    if (small_) return {};
    const auto part = [&](int64_t r) -> tessera_rows {
      const tessera_rows s = share(piece, r);
      return {all.first + s.first, s.count};
    };
    gathered_[0].wait();
    gathered_[1].wait();
    gathered_[0] = to_->out.gather(ranks_, part);
    if (to_->lse) gathered_[1] = to_->lse->gather(ranks_, part);
    return {};
  }

  tessera_tensor lse_rows() {
    const int64_t shape[] = {call_->first_row(call_->units), heads_};
    return to_->lse ? to_->lse->tensor() : tessera_dense(own_lse_.data(), TESSERA_F32, 2, shape);
  }

  Call* const call_;
  const Ranks& ranks_;
  const tessera_context& context_;
  std::vector<int64_t> bounds_ = {0};  // of the pieces, in units
  bool small_ = true;                  // every rank merges all rows
  int64_t heads_ = 0;
  int64_t lse_at_ = 0;  // bytes of a row's out
  int64_t record_ = 0;  // bytes of a row
  std::vector<float> own_lse_;
  std::optional<Outputs> to_;
  Buffer buffers_[2];
  Pending gathered_[2];
  Status merged_;
};

}  // namespace

Status attend(Call* call, const Ranks& ranks, const tessera_context& context) {
  return ranks.by_queries() ? attend_rows(call, ranks, context) : Shards(call, ranks, context).attend();
}

}  // namespace tessera::dist
