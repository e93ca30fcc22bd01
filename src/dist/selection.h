// What the two selections have in common: candidates of a rank, and the choice among those of all.
#ifndef TESSERA_DIST_SELECTION_H_
#define TESSERA_DIST_SELECTION_H_

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "dist/call.h"
#include "dist/shards.h"
#include "ops/select_topk/select_topk.h"
#include "runtime/executor.h"

namespace tessera::dist {

// Rows are units.
class Selection : public ShardedWork {
 public:
  using Ranges = select_topk::Ranges;

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

  static constexpr int64_t kScoreBytes = int64_t{16} << 20;  // of a piece, on each rank

  const tessera_context& context_;
  select_topk::Rule rule_ = {};
  int64_t heads_ = 0;
  int64_t blocks_ = 0;        // N: of the request that has the most
  std::vector<int32_t> ids_;  // [R][Hi][K]
};

}  // namespace tessera::dist

#endif  // TESSERA_DIST_SELECTION_H_
