#include "isa/neon.h"

#include "ops/block_max/kernel.h"

namespace tessera::block_max {

extern constinit const Kernel neon_bf16 = BlockMax<neon, bf16>::kernel();
extern constinit const Kernel neon_f16 = BlockMax<neon, f16>::kernel();
extern constinit const Kernel neon_f32 = BlockMax<neon, float>::kernel();

}  // namespace tessera::block_max
