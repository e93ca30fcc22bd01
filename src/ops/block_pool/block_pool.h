#ifndef TESSERA_OPS_BLOCK_POOL_BLOCK_POOL_H_
#define TESSERA_OPS_BLOCK_POOL_BLOCK_POOL_H_

#include <cstddef>

#include "core/status.h"
#include "ops/block_pool/plan.h"

namespace tessera::block_pool {

// The context has passed check_context().
Status run(const Problem& problem, const tessera_context& context);
Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes);

}  // namespace tessera::block_pool

#endif  // TESSERA_OPS_BLOCK_POOL_BLOCK_POOL_H_
