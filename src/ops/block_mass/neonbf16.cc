#include "isa/neonbf16.h"

#include "ops/block_mass/kernel.h"

namespace tessera::block_mass {

extern constinit const Kernel neonbf16_bf16 = BlockMass<neonbf16, bf16, false>::kernel();

}  // namespace tessera::block_mass
