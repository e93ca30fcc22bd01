// One task: a tile of query tokens of one request x the heads of one KV head's group, and where its arrays lie.
#ifndef TESSERA_OPS_BLOCK_ATTN_TASK_H_
#define TESSERA_OPS_BLOCK_ATTN_TASK_H_

#include "ops/block_attn/plan.h"

namespace tessera::block_attn {

// An array of a scratch.
template <class T>
static inline T* at(char* scratch, size_t offset) {
  return reinterpret_cast<T*>(scratch + offset);
}

// A template, so that files built with ISA flags keep their own copies.
template <class Isa>
struct Task {
  const Problem& p;
  const Plan& plan;
  const Request& r;
  char* base;     // of the workspace
  char* scratch;  // of the worker
  int64_t head;   // KV head
  int64_t tile;
  int64_t first_token;  // of the request
  int64_t tokens;
  int64_t first_list;
  int64_t lists;

  Task(const Problem& problem, const Plan& a_plan, const Request& request, char* workspace, int64_t kv_head,
       int64_t a_tile, int worker)
      : p(problem),
        plan(a_plan),
        r(request),
        base(workspace),
        scratch(workspace + a_plan.workers + static_cast<size_t>(worker) * a_plan.scratch.bytes),
        head(kv_head),
        tile(a_tile) {
    if (plan.tiles_per_list > 1) {  // an even share of one list's tokens
      first_list = tile / plan.tiles_per_list;
      const int64_t part = tile % plan.tiles_per_list;
      const int64_t list_begin = first_list * p.block_q;
      const int64_t left = r.seq.rows - list_begin;
      const int64_t size = left < p.block_q ? left : p.block_q;
      first_token = list_begin + part * size / plan.tiles_per_list;
      tokens = list_begin + (part + 1) * size / plan.tiles_per_list - first_token;
      lists = 1;
    } else {
      first_list = tile * plan.lists_per_tile;
      const int64_t left = r.lists - first_list;
      lists = left < plan.lists_per_tile ? left : plan.lists_per_tile;
      first_token = first_list * p.block_q;
      const int64_t end = (first_list + lists) * p.block_q;
      tokens = (end < r.seq.rows ? end : r.seq.rows) - first_token;
    }
  }

  // Rows are (token, head) pairs of the tile, in that order. Those that follow list i:
  int64_t first_row(int64_t i) const { return lists == 1 ? 0 : i * p.block_q * p.group; }
  int64_t list_rows(int64_t i) const {
    const int64_t left = tokens * p.group - first_row(i);
    return lists == 1 || left < p.block_q * p.group ? left : p.block_q * p.group;
  }

  // Offset of query t and head h in q and in the outputs.
  int64_t row_at(const Strides& s, int64_t t, int64_t h) const {
    return r.b * s.request + (r.seq.row + t) * s.token + h * s.head;
  }
};

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_TASK_H_
