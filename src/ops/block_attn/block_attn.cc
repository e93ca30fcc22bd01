#include "ops/block_attn/block_attn.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "core/check.h"
#include "ops/block_attn/plan.h"
#include "ops/block_attn/variants.h"
#include "ops/prepared.h"

namespace tessera::block_attn {

// ---- For Prepared ----

int64_t table_entries(const Problem& p) { return p.sequences.count; }

void resolve(Request* table, Problem* p) {
  int64_t taken = 0;
  for (int64_t i = 0; i < p->sequences.count; ++i) {
    const Cut cut = p->cuts != nullptr ? p->cuts[i] : Cut{tessera::resolve(p->sequences, i, &taken), i};
    table[i].seq = cut.seq;
    table[i].b = cut.b;
  }
  p->requests = table;
}

namespace {

using Call = Prepared<Problem, Request, Kernel>;
using Table = std::span<const Request>;

Table table_of(const Problem& p) { return {p.requests, static_cast<size_t>(p.sequences.count)}; }

// The request that item i belongs to, where each request has `share` items and `first` counts those of the ones before.
template <class First>
const Request& owner(Table table, int64_t i, const First& first) {
  const auto after = std::partition_point(table.begin(), table.end(), [&](const Request& r) { return first(r) <= i; });
  return *(after - 1);
}

// Marks the blocks that a list of this request and KV head holds and that its last query sees, and numbers them.
void mark_used(const Problem& p, const Plan& plan, const Request& r, char* base, int64_t head) {
  const int64_t words = used_words(r);
  uint64_t* const used = reinterpret_cast<uint64_t*>(base + plan.used) + first_word(p, r, head);
  int32_t* const rank = reinterpret_cast<int32_t*>(base + plan.rank) + first_word(p, r, head);
  std::memset(used, 0, static_cast<size_t>(words) * sizeof(uint64_t));
  for (int64_t list = 0; list < r.lists; ++list) {
    const int64_t end = std::min((list + 1) * p.block_q, r.seq.rows);
    const int64_t sees = visible_keys(r.seq, p.causal, end - 1);
    const int32_t* ids = ids_of(p, r, head, list);
    for (int64_t w = 0; w < p.width; ++w) {
      const int64_t id = ids[w * p.ids_entry];
      if (id >= 0 && id < r.blocks && id * p.block < sees) used[id / 64] |= uint64_t{1} << (id % 64);
    }
  }
  int32_t before = 0;
  for (int64_t word = 0; word < words; ++word) {
    rank[word] = before;
    before += __builtin_popcountll(used[word]);
  }
}

void pack_used(const Problem& p, const Plan& plan, char* base, const Executor& executor) {
  const int64_t count = p.sequences.count;
  executor.parallel_for(
      count * p.kv_heads,
      [&](int64_t i, int) {
        const Request& r = p.requests[i / p.kv_heads];
        if (r.source == Source::kPackOnce) mark_used(p, plan, r, base, i % p.kv_heads);
      },
      "mark");
  const auto* used = reinterpret_cast<const uint64_t*>(base + plan.used);
  executor.parallel_for(
      plan.packed_blocks * p.kv_heads,
      [&](int64_t i, int worker) {
        const Request& r = owner(table_of(p), i, [&](const Request& o) { return o.first_block * p.kv_heads; });
        const int64_t blocks = used_words(r) * 64;
        const int64_t head = (i - r.first_block * p.kv_heads) / blocks;
        const int64_t block = (i - r.first_block * p.kv_heads) % blocks;
        if ((used[first_word(p, r, head) + block / 64] >> (block % 64) & 1) == 0) return;
        plan.kernel->pack(p, plan, r, base, head, block, worker);
      },
      "pack");
}

// Rows between the requests and after the last belong to nobody: 0, and a logarithm of nothing.
void clear_gap(const Problem& p, int64_t begin, int64_t end) {
  const auto bytes = static_cast<size_t>(dtype_size(p.q_dtype));
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < p.kv_heads * p.group; ++h) {
      const int64_t at = t * p.out_stride.token + h * p.out_stride.head;
      std::memset(static_cast<char*>(p.out) + at * static_cast<int64_t>(bytes), 0,
                  static_cast<size_t>(p.dim_v) * bytes);
      if (p.lse != nullptr) p.lse[t * p.lse_stride.token + h * p.lse_stride.head] = -INFINITY;
    }
  }
}

void clear_gaps(const Problem& p, const Executor& executor) {
  const Table table = table_of(p);
  const auto count = static_cast<int64_t>(table.size());
  const auto end_of = [&](int64_t i) {
    const Sequence& s = table[static_cast<size_t>(i)].seq;
    return s.row + s.rows;
  };
  executor.parallel_for(
      count + 1,
      [&](int64_t i, int) {
        clear_gap(p, i == 0 ? 0 : end_of(i - 1), i == count ? p.sequences.rows : table[static_cast<size_t>(i)].seq.row);
      },
      "clear");
}

}  // namespace

Status run(const Problem& checked, const tessera_context& context) {
  const Executor executor(context.executor);
  const Call call(checked, variants(), context, executor);
  if (!call.status.ok()) return call.status;
  const Problem& p = call.problem;
  const Plan& plan = call.plan;
  const Workspace workspace = call.workspace(context);
  char* base = reinterpret_cast<char*>(workspace.data());

  if (p.sequences.packed_q) clear_gaps(p, executor);
  if (plan.packed_blocks > 0) pack_used(p, plan, base, executor);
  // One KV head's tiles follow each other, so its packed blocks stay in the caches; late queries first, since under a
  // causal mask they have the most to do.
  const auto first_task = [&](const Request& r) { return r.first_task * p.kv_heads; };
  executor.parallel_for(
      plan.tasks * p.kv_heads,
      [&](int64_t i, int worker) {
        const Request& r = owner(table_of(p), i, first_task);
        const int64_t chunks = r.split ? r.chunks : 1;
        const int64_t local = (i - first_task(r)) / chunks;
        const int64_t tile = r.tiles - 1 - local % r.tiles;
        plan.kernel->attend(p, plan, r, base, local / r.tiles, tile, (i - first_task(r)) % chunks, worker);
      },
      "attend");
  if (plan.partials == 0) return {};
  const auto first_tile = [&](const Request& r) { return r.first_tile * p.kv_heads; };
  executor.parallel_for(
      plan.tiles * p.kv_heads,
      [&](int64_t i, int worker) {
        const Request& r = owner(table_of(p), i, first_tile);
        const int64_t local = i - first_tile(r);
        if (r.split) plan.kernel->merge(p, plan, r, base, local / r.tiles, local % r.tiles, worker);
      },
      "merge");
  return {};
}

Status workspace_size(const Problem& p, const tessera_context& context, size_t* bytes) {
  return Call::workspace_size(p, variants(), context, bytes);
}

Status explain(const Problem& checked, const tessera_context& given, std::string* text) {
  tessera_context context = given;
  context.workspace = nullptr;
  const Executor executor(context.executor);
  const Call call(checked, variants(), context, executor);
  if (!call.status.ok()) return call.status;
  const Problem& p = call.problem;
  const Plan& plan = call.plan;
  size_t workspace = 0;
  if (Status s = workspace_size(checked, context, &workspace); !s.ok()) return s;
  *text = explain_variants(variants(), plan.kernel, dtypes_of(p), context.variant != nullptr);
  const auto line = [&](const std::string& what) { *text += what + "\n"; };
  const auto number = [](auto n) { return std::to_string(n); };
  const auto from = [&](Source source) {
    const Table table = table_of(p);
    return number(std::count_if(table.begin(), table.end(), [&](const Request& r) { return r.source == source; }));
  };
  line("query tiles: " + number(plan.tiles) + " per KV head, up to " + number(plan.tile_tokens) + " tokens x " +
       number(p.group) + " heads");
  line("key tiles: " + number(plan.key_tile) + " keys, " + number(plan.tiles_per_block) + " per block");
  line("keys and values: " + from(Source::kPackOnce) + " requests pack each used block once per call (" +
       number(plan.packed_k_bytes + plan.packed_v_bytes) + " bytes per key tile), " + from(Source::kInPlace) +
       " read packed pages, " + from(Source::kDirect) + " read rows");
  int64_t chunks = 1;
  int64_t split = 0;
  for (const Request& r : table_of(p)) {
    chunks = std::max(chunks, r.chunks);
    split += r.split ? 1 : 0;
  }
  line("chunks: up to " + number(chunks) + " of " + number(plan.chunk_tiles * plan.key_tile) +
       " keys, each a task in " + number(split) + " requests");
  line("workspace: " + number(workspace) + " bytes, " + number(plan.scratch.bytes) + " of them for each of " +
       number(executor.workers()) + " workers");
  return {};
}

}  // namespace tessera::block_attn
