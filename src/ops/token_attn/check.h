#ifndef TESSERA_OPS_TOKEN_ATTN_CHECK_H_
#define TESSERA_OPS_TOKEN_ATTN_CHECK_H_

#include "core/status.h"
#include "ops/token_attn/problem.h"

namespace tessera::token_attn {

// The only validation of attention over token lists.
Status check(const tessera_qsa_sparse_attention_args& args, Problem* problem);

}  // namespace tessera::token_attn

#endif  // TESSERA_OPS_TOKEN_ATTN_CHECK_H_
