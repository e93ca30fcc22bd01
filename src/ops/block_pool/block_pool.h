#ifndef TESSERA_OPS_BLOCK_POOL_BLOCK_POOL_H_
#define TESSERA_OPS_BLOCK_POOL_BLOCK_POOL_H_

#include "core/status.h"
#include "tessera/tessera.h"

namespace tessera::block_pool {

// The context has passed check_context().
Status run(const tessera_moba_select_args& args, const tessera_context& context);

}  // namespace tessera::block_pool

#endif  // TESSERA_OPS_BLOCK_POOL_BLOCK_POOL_H_
