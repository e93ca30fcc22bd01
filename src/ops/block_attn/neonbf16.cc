#include "isa/neonbf16.h"

#include "ops/block_attn/kernel.h"

namespace tessera::block_attn {

extern constinit const Kernel neonbf16_bf16 = BlockAttn<neonbf16, bf16, false>::kernel();

}  // namespace tessera::block_attn
