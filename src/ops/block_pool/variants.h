// The kernels of selection by mean keys, best first. Dispatch, tests and benches all read this one array.
#ifndef TESSERA_OPS_BLOCK_POOL_VARIANTS_H_
#define TESSERA_OPS_BLOCK_POOL_VARIANTS_H_

#include <span>

#include "ops/block_pool/plan.h"
#include "ops/choose.h"

namespace tessera::block_pool {

using Variant = KernelVariant<Kernel>;

std::span<const Variant> variants();

}  // namespace tessera::block_pool

#endif  // TESSERA_OPS_BLOCK_POOL_VARIANTS_H_
