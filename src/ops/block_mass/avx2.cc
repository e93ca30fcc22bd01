#include "isa/avx2.h"

#include "ops/block_mass/kernel.h"

namespace tessera::block_mass {

extern constinit const Kernel avx2_bf16 = BlockMass<avx2, bf16, false>::kernel();
extern constinit const Kernel avx2_f16 = BlockMass<avx2, f16, false>::kernel();
extern constinit const Kernel avx2_f32 = BlockMass<avx2, float, true>::kernel();

}  // namespace tessera::block_mass
