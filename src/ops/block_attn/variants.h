// The kernels of block attention, best first. Dispatch, tests and benches all read this one array.
#ifndef TESSERA_OPS_BLOCK_ATTN_VARIANTS_H_
#define TESSERA_OPS_BLOCK_ATTN_VARIANTS_H_

#include <span>

#include "ops/block_attn/plan.h"
#include "ops/choose.h"

namespace tessera::block_attn {

using Variant = KernelVariant<Kernel>;

std::span<const Variant> variants();

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_VARIANTS_H_
