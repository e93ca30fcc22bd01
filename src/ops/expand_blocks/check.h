// The only validation of expand_blocks' arguments.
#ifndef TESSERA_OPS_EXPAND_BLOCKS_CHECK_H_
#define TESSERA_OPS_EXPAND_BLOCKS_CHECK_H_

#include "core/status.h"
#include "ops/expand_blocks/problem.h"

namespace tessera::expand_blocks {

Status check(const tessera_qsa_expand_blocks_args& args, Problem* problem);

}  // namespace tessera::expand_blocks

#endif  // TESSERA_OPS_EXPAND_BLOCKS_CHECK_H_
