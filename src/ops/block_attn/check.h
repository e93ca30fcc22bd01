#ifndef TESSERA_OPS_BLOCK_ATTN_CHECK_H_
#define TESSERA_OPS_BLOCK_ATTN_CHECK_H_

#include "core/status.h"
#include "ops/block_attn/problem.h"

namespace tessera::block_attn {

// The only validation of block attention, one function per form of the call.
Status check(const tessera_block_sparse_gqa_prefill_args& args, Problem* problem);
// The form that fills state_o, state_l and state_m.
Status check_state(const tessera_block_sparse_gqa_prefill_args& args, Problem* problem);
// That one if state_o is given.
Status check_either(const tessera_block_sparse_gqa_prefill_args& args, Problem* problem);
Status check(const tessera_msa_sparse_attention_args& args, Problem* problem);
Status check(const tessera_block_sparse_attention_single_q_args& args, Problem* problem);

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_CHECK_H_
