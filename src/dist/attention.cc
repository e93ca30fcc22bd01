#include "dist/attention.h"

#include <optional>
#include <span>

#include "dist/outputs.h"
#include "dist/shards.h"
#include "ops/layout.h"

namespace tessera::dist {
namespace {

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

// A record: [Hq, Dv] of out, then [Hq] of lse.
class AttentionOfKeys final : public ShardedWork {
 public:
  AttentionOfKeys(Call* call, const tessera_context& context) : call_(call), context_(context) {}

  Status prepare() override {
    Status status = call_->check();
    word = call_->word;
    if (!status.ok()) return status;
    if (!call_->paged) return invalid("page_table is missing; context-parallel calls take keys in pages");
    const tessera_tensor& out = call_->out;
    units = call_->units;
    heads_ = out.shape[out.ndim - 2];
    dim_ = out.shape[out.ndim - 1];
    lse_at_ = round_up(heads_ * dim_ * dtype_size(out.dtype), 4);
    record_bytes = lse_at_ + heads_ * 4;
    piece_bytes = INT64_MAX;
    results.emplace_back(out, out.ndim - 2);
    if (given(call_->lse)) {
      results.emplace_back(call_->lse, call_->lse.ndim - 1);
    } else {
      own_lse_.resize(static_cast<size_t>(call_->first_row(units) * heads_));
    }
    return {};
  }
  int64_t first_row(int64_t unit) const override { return call_->first_row(unit); }

  Status compute(int64_t first, int64_t end, char* records) override {
    const int64_t count = first_row(end) - first_row(first);
    return call_->run(first, end, out_of(records, count), lse_of(records, count), context_);
  }
  Status merge(int64_t row, int64_t count, std::span<char* const> records) override {
    std::vector<tessera_tensor> outs, lses;
    for (char* of_rank : records) {
      outs.push_back(out_of(of_rank, count));
      lses.push_back(lse_of(of_rank, count));
    }
    const int64_t shape[] = {first_row(units), heads_};
    const tessera_tensor lse =
        results.size() > 1 ? results[1].tensor() : tessera_dense(own_lse_.data(), TESSERA_F32, 2, shape);
    const tessera_merge_states_args args = {outs.data(), lses.data(), static_cast<int64_t>(records.size()),
                                            narrow(results[0].tensor(), 0, row, count), narrow(lse, 0, row, count)};
    return reported(tessera_merge_states(&args, &context_));
  }

 private:
  tessera_tensor out_of(char* records, int64_t count) const {
    const tessera_dtype dtype = call_->out.dtype;
    return {records, dtype, 3, {count, heads_, dim_}, {record_bytes / dtype_size(dtype), dim_, 1}};
  }
  tessera_tensor lse_of(char* records, int64_t count) const {
    return {records + lse_at_, TESSERA_F32, 2, {count, heads_}, {record_bytes / 4, 1}};
  }

  Call* const call_;
  const tessera_context& context_;
  int64_t heads_ = 0;
  int64_t dim_ = 0;
  int64_t lse_at_ = 0;  // bytes of a row's out
  std::vector<float> own_lse_;
};

}  // namespace

Status attend(Call* call, const Ranks& ranks, const tessera_context& context) {
  if (ranks.by_queries()) return attend_rows(call, ranks, context);
  AttentionOfKeys work(call, context);
  return share_keys(&work, ranks);
}

}  // namespace tessera::dist
