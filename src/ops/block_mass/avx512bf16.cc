#include "isa/avx512bf16.h"

#include "ops/block_mass/kernel.h"

namespace tessera::block_mass {

extern constinit const Kernel avx512bf16_bf16 = BlockMass<avx512bf16, bf16, false>::kernel();

}  // namespace tessera::block_mass
