#include "isa/neon.h"

#include "ops/block_mass/kernel.h"

namespace tessera::block_mass {

extern constinit const Kernel neon_bf16 = BlockMass<neon, bf16, false>::kernel();
extern constinit const Kernel neon_f16 = BlockMass<neon, f16, false>::kernel();
extern constinit const Kernel neon_f32 = BlockMass<neon, float, true>::kernel();

}  // namespace tessera::block_mass
