#include "isa/scalar.h"

#include "ops/topk_blocks/kernel.h"

namespace tessera::topk_blocks {

extern constinit const Kernel scalar_f32 = TopkBlocks<scalar>::kernel();

}  // namespace tessera::topk_blocks
