#include "isa/neonbf16.h"

#include "ops/block_max/kernel.h"

namespace tessera::block_max {

extern constinit const Kernel neonbf16_bf16 = BlockMax<neonbf16, bf16>::kernel();

}  // namespace tessera::block_max
