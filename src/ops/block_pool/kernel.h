// Block scores by mean keys: the mean over a query block's rows and heads of q . mean(keys of the block).
//
// Both means are linear, so the score is (sum of q) . (sum of k) over counts: every key and every query is read once,
// and what is left is one product [lists][D] x [D][N]. Positive factors that all blocks of a list share do not change
// the order and are left out, but for powers of two that keep the sums in the range of means; only blocks with fewer keys
// (the last one; those with invalid pages) are brought to the others' length. Sums of small integers are so exact, and
// ties are ties.
//   pool: for 64 blocks, up to eight vectors of a row at a time in registers, 256 keys into one f32 sum, such sums into
//   the total
//   score: <= 48 lists: their summed queries, then the shared micro-kernel against each packed tile of 64 blocks
//   (16 KB at D = 64), scores [lists][N] in the worker's scratch (<= 1 MB unless one row is longer)
// Bytes: B Sk Hkv D + B Sq Hq D elements, memory bound until the product (2 D FLOP a list and block) outweighs them.
#ifndef TESSERA_OPS_BLOCK_POOL_KERNEL_H_
#define TESSERA_OPS_BLOCK_POOL_KERNEL_H_

#include <math.h>

#include "ops/block_pool/plan.h"
#include "tile/gemm.h"
#include "tile/panel.h"

namespace tessera::block_pool {

// In: element type of q and k.
template <class Isa, class In>
struct BlockPool {
  using vec = typename Isa::vec;
  using P = Panels<Isa>;
  using G = Gemm<Isa>;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int64_t kChunkRows = 256;  // summed in one go, so that errors grow with N / 256 + 256, not with N
  static_assert(Isa::kPair == 1, "sums are f32");

  // to[0, kN * kLanes) += the sum of n rows from column `from` on; `columns` of them exist.
  template <int kN>
  static void add_columns(const In* const* rows, int n, int from, int columns, float* to) {
    vec sum[kN];
#pragma GCC unroll 8
    for (int v = 0; v < kN; ++v) sum[v] = Isa::set1(0.0f);
    for (int i = 0; i < n; ++i) {
      const In* row = rows[i] + from;
#pragma GCC unroll 8
      for (int v = 0; v < kN; ++v) sum[v] = Isa::add(sum[v], Isa::units(row + v * kLanes, columns - v * kLanes));
    }
#pragma GCC unroll 8
    for (int v = 0; v < kN; ++v) Isa::store(to + v * kLanes, Isa::add(Isa::load(to + v * kLanes), sum[v]));
  }

  // to[0, dim) += the sum of n rows.
  static void add_chunk(const In* const* rows, int n, int dim, float* to) {
    int d = 0;
    for (; d + 8 * kLanes <= dim; d += 8 * kLanes) add_columns<8>(rows, n, d, 8 * kLanes, to + d);
    for (; d + 4 * kLanes <= dim; d += 4 * kLanes) add_columns<4>(rows, n, d, 4 * kLanes, to + d);
    for (; d < dim; d += kLanes) add_columns<1>(rows, n, d, dim - d, to + d);
  }

  // 1 / count, rounded to a power of two.
  static float reciprocal(int64_t count) {
    float r = 1.0f;
    for (; count > 1; count /= 2) r *= 0.5f;
    return r;
  }
  static void scale(float* row, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i += kLanes) Isa::store(row + i, Isa::mul(Isa::load(row + i), Isa::set1(factor)));
  }
  static void clear(float* row, int64_t n) {
    for (int64_t i = 0; i < n; ++i) row[i] = 0.0f;
  }

  static char* scratch_of(const Plan& plan, char* base, int worker) {
    return base + plan.workers + static_cast<size_t>(worker) * plan.scratch.bytes;
  }
  static float* packed_tile(const Problem& p, const Plan& plan, char* base, int64_t b, int64_t head, int64_t tile) {
    const int64_t first = plan.keep_all ? (b * p.kv_heads + head) * plan.block_tiles : 0;
    return reinterpret_cast<float*>(base + plan.packed + static_cast<size_t>(first + tile) * plan.packed_bytes);
  }

  // Blocks that begin before key `end`.
  static int64_t blocks_before(const Problem& p, int64_t end) {
    return end / p.rule.block + (end % p.rule.block != 0 ? 1 : 0);
  }
  // Where a block ends that begins at key `begin`.
  static int64_t block_end(const Problem& p, int64_t b, int64_t begin) {
    const int64_t keys = p.table[b].keys;
    return keys - begin < p.rule.block ? keys : begin + p.rule.block;
  }

  // row += the sum of the block's keys.
  static void add_block(const Problem& p, int64_t b, int64_t head, int64_t block, float* row) {
    const In* rows[kChunkRows];
    uint8_t place[kChunkRows];
    const int64_t begin = block * p.rule.block;
    const int64_t end = block_end(p, b, begin);
    for (int64_t key = begin; key < end; key += kChunkRows) {
      const int n = static_cast<int>(end - key < kChunkRows ? end - key : kChunkRows);
      const int count = locate_keys(p.k, p.pages, p.table[b], b, head, key, n, rows, place);
      add_chunk(rows, count, static_cast<int>(p.dim), row);
    }
  }

  static void pool(const Problem& p, const Plan& plan, char* base, int64_t b, int64_t head, int64_t tile, int worker) {
    float* rows = reinterpret_cast<float*>(scratch_of(plan, base, worker) + plan.scratch.rows);
    clear(rows, kTileBlocks * plan.dim_row);
    const float* packed_rows[kTileBlocks];
    for (int64_t i = 0; i < kTileBlocks; ++i) packed_rows[i] = rows + i * plan.dim_row;
    const int64_t blocks = blocks_before(p, p.table[b].keys);
    for (int64_t i = 0; i < kTileBlocks && tile * kTileBlocks + i < blocks; ++i) {
      float* row = rows + i * plan.dim_row;
      add_block(p, b, head, tile * kTileBlocks + i, row);
      scale(row, plan.dim_row, reciprocal(p.rule.block));
    }
    P::pack_keys(packed_rows, static_cast<int>(kTileBlocks), static_cast<int>(p.dim),
                 packed_tile(p, plan, base, b, head, tile));
  }

  // The sum over the list's queries that have a position and over the group's heads.
  static void sum_queries(const Problem& p, int64_t b, int64_t head, int64_t list, int64_t dim_row, float* row) {
    clear(row, dim_row);
    int64_t first = list_begin(p, list);
    const int64_t end = list_end(p, list);
    const int64_t absent = -position(p, b, first);
    if (absent > 0) first = absent < end - first ? first + absent : end;
    for (int64_t g = 0; g < p.group; ++g) {
      const In* q = static_cast<const In*>(p.q) + b * p.q_request + (head * p.group + g) * p.q_head;
      for (int64_t t = first; t < end; t += kChunkRows) {
        const In* rows[kChunkRows];
        const int n = static_cast<int>(end - t < kChunkRows ? end - t : kChunkRows);
        for (int i = 0; i < n; ++i) rows[i] = q + (t + i) * p.q_token;
        add_chunk(rows, n, static_cast<int>(p.dim), row);
      }
    }
    scale(row, dim_row, reciprocal((end - first) * p.group));
  }

  static void score(const Problem& p, const Plan& plan, char* base, int64_t b, int64_t head, int64_t task, int worker) {
    char* scratch = scratch_of(plan, base, worker);
    const int64_t first = task * plan.lists_per_task;
    const int n = static_cast<int>(p.lists - first < plan.lists_per_task ? p.lists - first : plan.lists_per_task);
    const float* q_rows[kTaskLists];
    float* s_rows[kTaskLists];
    for (int i = 0; i < n; ++i) {
      float* q = reinterpret_cast<float*>(scratch + plan.scratch.rows) + i * plan.dim_row;
      sum_queries(p, b, head, first + i, plan.dim_row, q);
      q_rows[i] = q;
      s_rows[i] = reinterpret_cast<float*>(scratch + plan.scratch.scores) + i * plan.score_row;
    }
    const int64_t visible = visible_keys(p, b, list_end(p, first + n - 1) - 1);
    const int dim = static_cast<int>(p.dim);
    const int vecs = P::vecs(kTileBlocks);
    const int64_t blocks = blocks_before(p, visible);
    for (int64_t tile = 0; tile * kTileBlocks < blocks; ++tile) {
      const float* k = packed_tile(p, plan, base, b, head, tile);
      G::all(k, vecs, dim, dim, vecs, false, n, q_rows, s_rows, k + plan.packed_bytes / sizeof(float));
      for (int i = 0; i < n; ++i) s_rows[i] += kTileBlocks;
    }
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t begin = block * p.rule.block;
      const int64_t keys = select_topk::count_keys(p, b, begin, block_end(p, b, begin));
      if (keys == p.rule.block) continue;
      const double longer = static_cast<double>(p.rule.block) / static_cast<double>(keys);
      for (int i = 0; i < n; ++i) {
        float* s = reinterpret_cast<float*>(scratch + plan.scratch.scores) + i * plan.score_row + block;
        *s = keys == 0 ? -INFINITY : static_cast<float>(static_cast<double>(*s) * longer);
      }
    }
  }

  static constexpr Kernel kernel() { return {pool, score, kLanes}; }
};

}  // namespace tessera::block_pool

#endif  // TESSERA_OPS_BLOCK_POOL_KERNEL_H_
