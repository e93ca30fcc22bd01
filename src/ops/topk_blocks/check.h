#ifndef TESSERA_OPS_TOPK_BLOCKS_CHECK_H_
#define TESSERA_OPS_TOPK_BLOCKS_CHECK_H_

#include "core/status.h"
#include "ops/topk_blocks/problem.h"

namespace tessera::topk_blocks {

Status check(const tessera_topk_blocks_args& args, Problem* problem);

}  // namespace tessera::topk_blocks

#endif  // TESSERA_OPS_TOPK_BLOCKS_CHECK_H_
