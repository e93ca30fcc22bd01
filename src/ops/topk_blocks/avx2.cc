#include "isa/avx2.h"

#include "ops/topk_blocks/kernel.h"

namespace tessera::topk_blocks {

extern constinit const Kernel avx2_f32 = TopkBlocks<avx2>::kernel();

}  // namespace tessera::topk_blocks
