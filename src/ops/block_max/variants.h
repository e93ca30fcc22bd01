// The kernels of the indexer, best first. Dispatch, tests and benches all read this one array.
#ifndef TESSERA_OPS_BLOCK_MAX_VARIANTS_H_
#define TESSERA_OPS_BLOCK_MAX_VARIANTS_H_

#include <span>

#include "ops/block_max/plan.h"
#include "ops/choose.h"

namespace tessera::block_max {

using Variant = KernelVariant<Kernel>;

std::span<const Variant> variants();

}  // namespace tessera::block_max

#endif  // TESSERA_OPS_BLOCK_MAX_VARIANTS_H_
