// The kernels of mass selection, best first. Dispatch, tests and benches all read this one array.
#ifndef TESSERA_OPS_BLOCK_MASS_VARIANTS_H_
#define TESSERA_OPS_BLOCK_MASS_VARIANTS_H_

#include <span>

#include "ops/block_mass/plan.h"
#include "ops/choose.h"

namespace tessera::block_mass {

using Variant = KernelVariant<Kernel>;

std::span<const Variant> variants();

}  // namespace tessera::block_mass

#endif  // TESSERA_OPS_BLOCK_MASS_VARIANTS_H_
