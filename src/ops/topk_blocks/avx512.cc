#include "isa/avx512.h"

#include "ops/topk_blocks/kernel.h"

namespace tessera::topk_blocks {

extern constinit const Kernel avx512_f32 = TopkBlocks<avx512>::kernel();

}  // namespace tessera::topk_blocks
