#include "ops/block_attn/block_attn.h"

#include <cstring>

#include "ops/block_attn/check.h"
#include "ops/block_attn/plan.h"
#include "ops/block_attn/variants.h"
#include "runtime/executor.h"
#include "runtime/workspace.h"

namespace tessera::block_attn {
namespace {

struct Prepared {
  Problem problem;
  Plan plan;
  const Variant* variant;
};

bool is_state_form(const Args& args) { return args.state_o.ndim != 0; }

Status prepare(const Args& args, bool wants_state, const tessera_context& context, const Executor& executor,
               Prepared* prepared) {
  if (Status s = check(args, wants_state, &prepared->problem); !s.ok()) return s;
  const tessera_dtype dtype = prepared->problem.dtype;
  Status complaint;
  prepared->variant = choose_variant(variants(), context.variant, dtype, &complaint);
  if (prepared->variant == nullptr) return complaint;
  const bool whole = executor.num_parts() == 1;
  prepared->plan = make_plan(prepared->problem, *prepared->variant->kernel(dtype), whole, executor.workers());
  return {};
}

// Marks the blocks that a list of this request and KV head holds and that its last query sees.
void mark_used(const Problem& p, const Plan& plan, char* base, int64_t b, int64_t head) {
  const int64_t words = (p.blocks + 63) / 64;
  auto* used = reinterpret_cast<uint64_t*>(base + plan.used) + (b * p.kv_heads + head) * words;
  std::memset(used, 0, static_cast<size_t>(words) * sizeof(uint64_t));
  for (int64_t list = 0; list < p.lists; ++list) {
    const int64_t last = (list + 1) * p.block_q < p.queries ? (list + 1) * p.block_q : p.queries;
    const int64_t sees = visible_keys(p, b, last - 1);
    const int32_t* ids = p.ids + b * p.ids_request + head * p.ids_head + list * p.ids_list;
    for (int64_t w = 0; w < p.width; ++w) {
      const int64_t id = ids[w * p.ids_entry];
      if (id >= 0 && id < p.blocks && id * p.block < sees) used[id / 64] |= uint64_t{1} << (id % 64);
    }
  }
}

void pack_used(const Problem& p, const Plan& plan, char* base, const Executor& executor) {
  const int64_t heads = p.requests * p.kv_heads;
  const int64_t words = (p.blocks + 63) / 64;
  const auto* used = reinterpret_cast<const uint64_t*>(base + plan.used);
  executor.parallel_for(
      heads, [&](int64_t i, int) { mark_used(p, plan, base, i / p.kv_heads, i % p.kv_heads); }, "mark");
  executor.parallel_for(
      heads * p.blocks,
      [&](int64_t i, int) {
        const int64_t block = i % p.blocks;
        const int64_t bh = i / p.blocks;
        if ((used[bh * words + block / 64] >> (block % 64) & 1) == 0) return;
        for (int64_t piece = 0; piece < plan.tiles_per_block; ++piece) {
          plan.kernel->pack(p, plan, base, bh / p.kv_heads, bh % p.kv_heads, block * plan.tiles_per_block + piece);
        }
      },
      "pack");
}

}  // namespace

Status run(const Args& args, bool wants_state, const tessera_context& context) {
  const Executor executor(context.executor);
  Prepared prepared;
  if (Status s = prepare(args, wants_state, context, executor, &prepared); !s.ok()) return s;
  const Problem& p = prepared.problem;
  const Plan& plan = prepared.plan;
  const Workspace workspace(context, plan.bytes);
  char* base = reinterpret_cast<char*>(workspace.data());

  if (plan.pack_once) pack_used(p, plan, base, executor);
  // One KV head's tiles follow each other, so its packed blocks stay in the caches; late queries first, since under a
  // causal mask they have the most to do.
  const int64_t chunks = plan.split ? plan.max_chunks : 1;
  const int64_t heads = p.requests * p.kv_heads;
  executor.parallel_for(
      heads * plan.tiles * chunks,
      [&](int64_t i, int worker) {
        const int64_t bh = i / (plan.tiles * chunks);
        const int64_t tile = plan.tiles - 1 - i / chunks % plan.tiles;
        plan.kernel->attend(p, plan, base, bh / p.kv_heads, bh % p.kv_heads, tile, i % chunks, worker);
      },
      "attend");
  if (!plan.split) return {};
  executor.parallel_for(
      heads * plan.tiles,
      [&](int64_t i, int worker) {
        const int64_t bh = i / plan.tiles;
        plan.kernel->merge(p, plan, base, bh / p.kv_heads, bh % p.kv_heads, i % plan.tiles, worker);
      },
      "merge");
  return {};
}

Status workspace_size(const Args& args, const tessera_context& context, size_t* bytes) {
  const Executor executor(context.executor);
  Prepared prepared;
  if (Status s = prepare(args, is_state_form(args), context, executor, &prepared); !s.ok()) return s;
  *bytes = prepared.plan.bytes;
  return {};
}

Status explain(const Args& args, const tessera_context& context, std::string* text) {
  const Executor executor(context.executor);
  Prepared prepared;
  if (Status s = prepare(args, is_state_form(args), context, executor, &prepared); !s.ok()) return s;
  const Problem& p = prepared.problem;
  const Plan& plan = prepared.plan;
  text->clear();
  const auto line = [&](const std::string& what) { *text += what + "\n"; };
  const auto number = [](auto n) { return std::to_string(n); };
  for (const Variant& v : variants()) {
    if (&v == prepared.variant) break;
    line(context.variant != nullptr ? std::string("variant ") + v.name + ": another was asked for"
                                    : why_not(v, p.dtype));
  }
  line(std::string("variant: ") + prepared.variant->name);
  line("query tiles: " + number(plan.tiles) + " per request and KV head, up to " + number(plan.tile_tokens) +
       " tokens x " + number(p.group) + " heads");
  line("key tiles: " + number(plan.key_tile) + " keys, " + number(plan.tiles_per_block) + " per block");
  line(std::string("packing: ") + (plan.pack_once ? "each used block once per call" : "on the fly in each task") +
       ", " + number(plan.packed_k_bytes + plan.packed_v_bytes) + " bytes per key tile");
  line("chunks: up to " + number(plan.max_chunks) + " of " + number(plan.chunk_tiles * plan.key_tile) + " keys, " +
       (plan.split ? "each a task" : "in one task"));
  line("workspace: " + number(plan.bytes) + " bytes, " + number(plan.scratch.bytes) + " of them for each of " +
       number(executor.workers()) + " workers");
  return {};
}

}  // namespace tessera::block_attn
