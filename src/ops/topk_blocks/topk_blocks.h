#ifndef TESSERA_OPS_TOPK_BLOCKS_TOPK_BLOCKS_H_
#define TESSERA_OPS_TOPK_BLOCKS_TOPK_BLOCKS_H_

#include <cstddef>

#include "core/status.h"
#include "ops/topk_blocks/problem.h"

namespace tessera::topk_blocks {

// The context has passed check_context().
Status run(const Problem& problem, const tessera_context& context);
Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes);

}  // namespace tessera::topk_blocks

#endif  // TESSERA_OPS_TOPK_BLOCKS_TOPK_BLOCKS_H_
