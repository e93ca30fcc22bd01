// The kernels of the selection from scores, best first.
#ifndef TESSERA_OPS_TOPK_BLOCKS_VARIANTS_H_
#define TESSERA_OPS_TOPK_BLOCKS_VARIANTS_H_

#include <span>

#include "ops/choose.h"
#include "ops/topk_blocks/plan.h"

namespace tessera::topk_blocks {

using Variant = KernelVariant<Kernel>;

std::span<const Variant> variants();

}  // namespace tessera::topk_blocks

#endif  // TESSERA_OPS_TOPK_BLOCKS_VARIANTS_H_
