#include "isa/neon.h"

#include "ops/block_attn/kernel.h"

namespace tessera::block_attn {

extern constinit const Kernel neon_bf16 = BlockAttn<neon, bf16, false>::kernel();
extern constinit const Kernel neon_f16 = BlockAttn<neon, f16, false>::kernel();
extern constinit const Kernel neon_f32 = BlockAttn<neon, float, true>::kernel();

}  // namespace tessera::block_attn
