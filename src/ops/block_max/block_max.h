#ifndef TESSERA_OPS_BLOCK_MAX_BLOCK_MAX_H_
#define TESSERA_OPS_BLOCK_MAX_BLOCK_MAX_H_

#include <cstddef>

#include "core/status.h"
#include "ops/block_max/problem.h"

namespace tessera::block_max {

// The context has passed check_context().
Status run(const Problem& problem, const tessera_context& context);
Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes);

}  // namespace tessera::block_max

#endif  // TESSERA_OPS_BLOCK_MAX_BLOCK_MAX_H_
