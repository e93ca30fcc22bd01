#include "ops/append_keys/append_keys.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "ops/compress_keys/compress_keys.h"
#include "ops/compress_keys/variants.h"
#include "ops/layout.h"
#include "runtime/executor.h"

namespace tessera::append_keys {
namespace {

using compress_keys::Block;
using compress_keys::Run;

// A task of rows compresses the blocks that end in them: some 10 us of memory traffic at least. Each task looks at every
// request, so there are not many.
constexpr int64_t kTaskElements = int64_t{1} << 15;
constexpr int64_t kMaxRowTasks = 64;
constexpr int64_t kRingTaskRequests = 8;
constexpr int64_t kMaxRingTasks = 64;

// The tokens [begin, end) of request b that a call brings.
struct Tokens {
  int64_t b;
  int64_t begin, end;
  int64_t row;  // of token `begin`, among those of its request or, packed, of all
};

class Call {
 public:
  Call(const Problem& p, const compress_keys::Kernel& kernel) : p_(p), kernel_(kernel) {
    compress_keys::fill(p.rule, p.rotation.cos == nullptr, &tables_);
  }

  // The blocks that end in rows [first, end) and began in this call. They read nothing but its rows.
  void compress_rows(int64_t first, int64_t end) const {
    each_request([&](const Tokens& t) {
      const int64_t row = p_.sequences.packed_q ? t.row : t.b * p_.sequences.rows;
      const int64_t from = t.begin + std::clamp<int64_t>(first - row, 0, t.end - t.begin);
      const int64_t to = t.begin + std::clamp<int64_t>(end - row, 0, t.end - t.begin);
      const int64_t bs = p_.rule.block;
      // A block ends in (from, to]; the first ends there or later, and does not begin before the call.
      for (int64_t g = std::max(from / bs, ceil_div(t.begin, bs)); g < to / bs; ++g) compress(t, g);
    });
  }

  // Of the requests whose ring slot leaves the remainder `share`: the block that began before the call, which needs the
  // ring, and only then the ring's new rows. A slot is one task's, so nobody reads what another is writing.
  void complete_and_keep(int64_t share, int64_t shares) const {
    const auto each_own = [&](const auto& use) {
      each_request([&](const Tokens& t) {
        const int64_t slot = slot_of(t.b);
        if (slot >= 0 && slot % shares == share) use(t, slot);
      });
    };
    const int64_t bs = p_.rule.block;
    each_own([&](const Tokens& t, int64_t) {
      const int64_t g = t.begin / bs;
      if (t.begin % bs != 0 && g < t.end / bs) compress(t, g);
    });
    each_own([&](const Tokens& t, int64_t slot) { keep(t, slot); });
  }

 private:
  template <class Use>
  void each_request(const Use& use) const {
    int64_t taken = 0;
    for (int64_t b = 0; b < p_.sequences.count; ++b) {
      const Sequence s = resolve(p_.sequences, b, &taken);
      const int64_t begin = std::max<int64_t>(s.offset, 0);
      if (s.rows > 0) use(Tokens{b, begin, begin + s.rows, s.row});
    }
  }

  // Negative: none.
  int64_t slot_of(int64_t b) const {
    const int64_t slot = p_.ring.slot.data == nullptr ? b : p_.ring.slot[b];
    return slot < p_.ring.slots ? slot : -1;
  }

  // Where the key of block g goes; null: nowhere.
  void* place(int64_t b, int64_t g) const {
    const Cache& cache = p_.cache;
    if (cache.page_size == 0 || g / cache.page_size >= cache.max_pages) return nullptr;
    const int64_t page =
        cache.table == nullptr ? b : cache.table[b * cache.table_request + g / cache.page_size * cache.table_entry];
    return page < 0 || page >= cache.pages ? nullptr : cache.rows.at(page, g % cache.page_size);
  }

  void compress(const Tokens& t, int64_t g) const {
    const int64_t i = g - t.begin / p_.rule.block;
    Block block = {};
    block.out = place(t.b, g);
    if (block.out == nullptr || i >= p_.rotation.blocks) return;
    const int64_t first = g * p_.rule.block;
    Run* run = block.runs;
    if (first < t.begin) run = earlier(first, t.begin, slot_of(t.b), run);
    const int64_t from = std::max(first, t.begin);
    *run = {p_.raw.at(t.b, t.row + from - t.begin), p_.raw.row, first + p_.rule.block - from};
    compress_keys::turn_block(p_.rotation, t.b, i, first, &block);
    kernel_.compress(p_.rule, tables_, block);
  }

  // Tokens [first, end) from the ring, which they may straddle; returns the run after theirs.
  Run* earlier(int64_t first, int64_t end, int64_t slot, Run* run) const {
    while (first < end) {
      const int64_t row = first % p_.ring.capacity;
      const int64_t n = std::min(end - first, p_.ring.capacity - row);
      *run++ = {p_.ring.rows.at(slot, row), p_.ring.rows.row, n};
      first += n;
    }
    return run;
  }

  // The last rows of the request.
  void keep(const Tokens& t, int64_t slot) const {
    const auto bytes = static_cast<size_t>(p_.rule.dim * dtype_size(p_.rule.dtype));
    for (int64_t token = std::max(t.begin, t.end - p_.ring.capacity); token < t.end; ++token) {
      std::memcpy(p_.ring.rows.at(slot, token % p_.ring.capacity), p_.raw.at(t.b, t.row + token - t.begin), bytes);
    }
  }

  const Problem& p_;
  const compress_keys::Kernel& kernel_;
  compress_keys::Tables tables_;
};

}  // namespace

// No task waits for another: only one reads and writes a slot of the ring, and all others read the call's rows alone.
Status run(const Problem& p, const tessera_context& context) {
  Status complaint;
  const auto* const variant = choose_variant(compress_keys::variants(), context.variant, p.rule.dtype, &complaint);
  if (variant == nullptr) return complaint;
  if (p.rows == 0 || p.sequences.count == 0) return {};
  const Call call(p, *variant->kernel(p.rule.dtype));
  const int64_t ring_tasks = std::min(ceil_div(p.sequences.count, kRingTaskRequests), kMaxRingTasks);
  const int64_t task_rows = std::max({int64_t{1}, kTaskElements / p.rule.dim, ceil_div(p.rows, kMaxRowTasks)});
  const Executor executor(context.executor);
  executor.parallel_for(
      ring_tasks + ceil_div(p.rows, task_rows),
      [&](int64_t task, int) {
        if (task < ring_tasks) return call.complete_and_keep(task, ring_tasks);
        const int64_t first = (task - ring_tasks) * task_rows;
        call.compress_rows(first, first + task_rows);
      },
      "append_keys");
  return {};
}

}  // namespace tessera::append_keys
