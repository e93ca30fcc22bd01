// Lists of blocks as lists of their tokens.
#ifndef TESSERA_OPS_EXPAND_BLOCKS_EXPAND_BLOCKS_H_
#define TESSERA_OPS_EXPAND_BLOCKS_EXPAND_BLOCKS_H_

#include "core/status.h"
#include "ops/expand_blocks/problem.h"

namespace tessera::expand_blocks {

// The problem has passed check(), the context check_context(). Needs no workspace.
Status run(const Problem& problem, const tessera_context& context);

}  // namespace tessera::expand_blocks

#endif  // TESSERA_OPS_EXPAND_BLOCKS_EXPAND_BLOCKS_H_
