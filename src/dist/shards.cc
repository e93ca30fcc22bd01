#include "dist/shards.h"

#include <algorithm>
#include <optional>

namespace tessera::dist {
namespace {

// A piece of fewer bytes than this goes to every rank.
constexpr int64_t kSmallBytes = int64_t{256} << 10;

class Shards {
 public:
  Shards(ShardedWork* work, const Ranks& ranks) : work_(work), ranks_(ranks) {}

  Status run() {
    Word& word = work_->word;
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
    if (!small_) {
      done.status = merged_;
      merged_ = Agreement(ranks_, done).wait();
    }
    if (!merged_.ok()) return merged_;
    for (Pending& rows : gathered_) rows.wait();
    for (const Rows& rows : work_->results) rows.finish();
    return {};
  }

 private:
  // A piece's records: those of this rank, and of its part those of the others.
  struct Buffer {
    std::vector<char> own, others;
    std::optional<Agreement> word;
    Pending records;
  };

  int64_t pieces() const { return static_cast<int64_t>(bounds_.size()) - 1; }
  tessera_rows rows(int64_t piece) const {
    const int64_t first = work_->first_row(bounds_[static_cast<size_t>(piece)]);
    return {first, work_->first_row(bounds_[static_cast<size_t>(piece) + 1]) - first};
  }
  Buffer& buffer(int64_t piece) { return buffers_[piece % 2]; }

  // Of a piece's rows, those that a rank merges.
  tessera_rows share(int64_t piece, int64_t rank) const {
    const int64_t count = rows(piece).count;
    return small_ ? tessera_rows{0, count} : even_part(count, rank, ranks_.size());
  }

  Status prepare() {
    if (Status s = work_->prepare(); !s.ok()) return s;
    const int64_t limit = std::min(ranks_.exchange_bytes(), work_->piece_bytes);
    int64_t most = 0;
    for (int64_t unit = 0; unit < work_->units;) {
      const int64_t first = unit++;
      const auto bytes = [&](int64_t end) {
        return (work_->first_row(end) - work_->first_row(first)) * work_->record_bytes;
      };
      while (unit < work_->units && bytes(unit + 1) <= limit) ++unit;
      bounds_.push_back(unit);
      most = std::max(most, bytes(unit));
    }
    small_ = pieces() <= 1 && most <= kSmallBytes;
    for (int64_t i = 0; i < std::min<int64_t>(pieces(), 2); ++i) {
      buffers_[i].own.resize(static_cast<size_t>(most));
      // Parts of a piece that it does not divide into evenly differ by a row.
      const int64_t parts = small_ ? most * ranks_.size() : most + ranks_.size() * work_->record_bytes;
      buffers_[i].others.resize(static_cast<size_t>(parts));
    }
    gathered_.resize(work_->results.size());
    work_->word.add(static_cast<uint64_t>(limit));
    return {};
  }

  Word compute(int64_t piece) {
    Word done;
    done.status = guarded([&] {
      const auto i = static_cast<size_t>(piece);
      return work_->compute(bounds_[i], bounds_[i + 1], buffer(piece).own.data());
    });
    return done;
  }

  void send(int64_t piece, const Word& done) {
    Buffer& b = buffer(piece);
    const int64_t mine = share(piece, ranks_.rank()).count;
    b.word.emplace(ranks_, done);
    b.records = ranks_.exchange(
        b.own.data(), [&](int64_t r) { return share(piece, r); }, b.others.data(),
        [&](int64_t r) {
          return tessera_rows{r * mine, mine};
        },
        work_->record_bytes);
  }

  // A failure of any rank before the piece was sent. One of the merge itself is kept for the next word.
  Status merge(int64_t piece) {
    Buffer& b = buffer(piece);
    Status status = b.word->wait();
    b.records.wait();
    if (!status.ok()) return status;
    const tessera_rows all = rows(piece);
    const tessera_rows mine = share(piece, ranks_.rank());
    merged_ = guarded([&] {
      std::vector<char*> records;
      for (int64_t r = 0; r < ranks_.size(); ++r) {
        records.push_back(r == ranks_.rank() ? b.own.data() + mine.first * work_->record_bytes
                                             : b.others.data() + r * mine.count * work_->record_bytes);
      }
      return work_->merge(all.first + mine.first, mine.count, records);
    });
    if (small_) return {};
    for (size_t i = 0; i < gathered_.size(); ++i) {
      gathered_[i].wait();
      gathered_[i] = work_->results[i].gather(ranks_, [&](int64_t r) -> tessera_rows {
        const tessera_rows s = share(piece, r);
        return {all.first + s.first, s.count};
      });
    }
    return {};
  }

  ShardedWork* const work_;
  const Ranks& ranks_;
  std::vector<int64_t> bounds_ = {0};  // of the pieces, in units
  bool small_ = true;                  // every rank merges all rows
  Buffer buffers_[2];
  std::vector<Pending> gathered_;  // one for each result
  Status merged_;
};

}  // namespace

Status share_keys(ShardedWork* work, const Ranks& ranks) { return Shards(work, ranks).run(); }

}  // namespace tessera::dist
