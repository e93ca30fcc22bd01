#include "isa/neon.h"

#include "ops/block_pool/kernel.h"

namespace tessera::block_pool {

extern constinit const Kernel neon_bf16 = BlockPool<neon, bf16>::kernel();
extern constinit const Kernel neon_f16 = BlockPool<neon, f16>::kernel();
extern constinit const Kernel neon_f32 = BlockPool<neon, float>::kernel();

}  // namespace tessera::block_pool
