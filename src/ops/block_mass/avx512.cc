#include "isa/avx512.h"

#include "ops/block_mass/kernel.h"

namespace tessera::block_mass {

extern constinit const Kernel avx512_bf16 = BlockMass<avx512, bf16, false>::kernel();
extern constinit const Kernel avx512_f16 = BlockMass<avx512, f16, false>::kernel();
extern constinit const Kernel avx512_f32 = BlockMass<avx512, float, true>::kernel();

}  // namespace tessera::block_mass
