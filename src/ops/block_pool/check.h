#ifndef TESSERA_OPS_BLOCK_POOL_CHECK_H_
#define TESSERA_OPS_BLOCK_POOL_CHECK_H_

#include "core/status.h"
#include "ops/select_topk/problem.h"

namespace tessera::block_pool {

using Problem = select_topk::Problem;

constexpr int64_t kDefaultBlock = 128;
constexpr int64_t kDefaultBlockQ = 1;

// The only validation of selection by mean keys.
Status check(const tessera_moba_select_args& args, Problem* problem);

}  // namespace tessera::block_pool

#endif  // TESSERA_OPS_BLOCK_POOL_CHECK_H_
