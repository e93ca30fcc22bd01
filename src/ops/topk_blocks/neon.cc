#include "isa/neon.h"

#include "ops/topk_blocks/kernel.h"

namespace tessera::topk_blocks {

extern constinit const Kernel neon_f32 = TopkBlocks<neon>::kernel();

}  // namespace tessera::topk_blocks
