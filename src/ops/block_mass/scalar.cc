#include "isa/scalar.h"

#include "ops/block_mass/kernel.h"

namespace tessera::block_mass {

extern constinit const Kernel scalar_bf16 = BlockMass<scalar, bf16, false>::kernel();
extern constinit const Kernel scalar_f16 = BlockMass<scalar, f16, false>::kernel();
extern constinit const Kernel scalar_f32 = BlockMass<scalar, float, true>::kernel();

}  // namespace tessera::block_mass
