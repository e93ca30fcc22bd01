#ifndef TESSERA_OPS_SELECT_TOPK_CHECK_H_
#define TESSERA_OPS_SELECT_TOPK_CHECK_H_

#include "core/check.h"
#include "core/status.h"
#include "ops/select_topk/problem.h"

namespace tessera::select_topk {

// The arguments that every selector takes, with the selector's own defaults.
struct Args {
  template <class OpArgs>
  Args(const OpArgs& a, int64_t default_block, int64_t default_block_q)
      : q(a.q),
        k(a.k),
        q_offset(a.q_offset),
        indices(a.indices),
        topk(a.topk),
        block(a.block_size == 0 ? default_block : a.block_size),
        block_q(a.block_q == 0 ? default_block_q : a.block_q),
        local_blocks(a.local_blocks),
        init_blocks(a.init_blocks) {}

  const tessera_tensor& q;
  const tessera_tensor& k;
  const tessera_tensor& q_offset;
  const tessera_tensor& indices;
  int64_t topk;
  int64_t block;
  int64_t block_q;
  int64_t local_blocks;
  int64_t init_blocks;
};

// Checks them, and fills *problem if there is no complaint.
void check(const Args& args, Checker* c, Problem* problem);

}  // namespace tessera::select_topk

#endif  // TESSERA_OPS_SELECT_TOPK_CHECK_H_
