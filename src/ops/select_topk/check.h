#ifndef TESSERA_OPS_SELECT_TOPK_CHECK_H_
#define TESSERA_OPS_SELECT_TOPK_CHECK_H_

#include "core/check.h"
#include "core/status.h"
#include "ops/select_topk/problem.h"

namespace tessera::select_topk {

// Of whatever selects: at least one block, and room for the blocks that are always in.
void check_rule(const Rule& rule, Checker* c);

// The arguments that the selectors by query blocks take, with the selector's own defaults.
struct Args {
  template <class OpArgs>
  Args(const OpArgs& a, int64_t default_block, int64_t default_block_q)
      : q(a.q),
        k(a.k),
        indices(a.indices),
        block_q(a.block_q == 0 ? default_block_q : a.block_q),
        rule{a.topk, a.block_size == 0 ? default_block : a.block_size, a.local_blocks, a.init_blocks} {
    sequences.page_table = a.page_table;
    sequences.seqused_k = a.seqused_k;
    sequences.q_offset = a.q_offset;
  }

  const tessera_tensor& q;
  const tessera_tensor& k;
  const tessera_tensor& indices;
  int64_t block_q;
  Rule rule;
  tessera_sequences sequences = {};
};

// Checks them, and fills *problem if there is no complaint, but for what the lengths of the requests decide.
void check(const Args& args, Checker* c, Problem* problem);

}  // namespace tessera::select_topk

#endif  // TESSERA_OPS_SELECT_TOPK_CHECK_H_
