#ifndef TESSERA_OPS_BLOCK_ATTN_CHECK_H_
#define TESSERA_OPS_BLOCK_ATTN_CHECK_H_

#include "core/status.h"
#include "ops/block_attn/problem.h"

namespace tessera::block_attn {

// The only validation of block attention, one function per form of the call.
// `wants_state`: the call is the one that fills state_o, state_l and state_m.
Status check(const tessera_block_sparse_gqa_prefill_args& args, bool wants_state, Problem* problem);
Status check(const tessera_msa_sparse_attention_args& args, Problem* problem);
Status check(const tessera_block_sparse_attention_single_q_args& args, Problem* problem);

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_CHECK_H_
