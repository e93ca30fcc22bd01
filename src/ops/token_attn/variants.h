// The kernels of attention over token lists, best first. Dispatch, tests and benches all read this one array.
#ifndef TESSERA_OPS_TOKEN_ATTN_VARIANTS_H_
#define TESSERA_OPS_TOKEN_ATTN_VARIANTS_H_

#include <span>

#include "ops/choose.h"
#include "ops/token_attn/plan.h"

namespace tessera::token_attn {

using Variant = KernelVariant<Kernel>;

std::span<const Variant> variants();

}  // namespace tessera::token_attn

#endif  // TESSERA_OPS_TOKEN_ATTN_VARIANTS_H_
