#ifndef TESSERA_OPS_BLOCK_MAX_CHECK_H_
#define TESSERA_OPS_BLOCK_MAX_CHECK_H_

#include "core/status.h"
#include "ops/block_max/problem.h"

namespace tessera::block_max {

// The only validation of the indexer's operators.
Status check(const tessera_msa_block_scores_args& args, Problem* problem);
Status check(const tessera_msa_select_args& args, Problem* problem);

}  // namespace tessera::block_max

#endif  // TESSERA_OPS_BLOCK_MAX_CHECK_H_
