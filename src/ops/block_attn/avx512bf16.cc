#include "isa/avx512bf16.h"

#include "ops/block_attn/kernel.h"

namespace tessera::block_attn {

extern constinit const Kernel avx512bf16_bf16 = BlockAttn<avx512bf16, bf16, false>::kernel();

}  // namespace tessera::block_attn
