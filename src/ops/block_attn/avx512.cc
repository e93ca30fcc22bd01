#include "isa/avx512.h"

#include "ops/block_attn/kernel.h"

namespace tessera::block_attn {

extern constinit const Kernel avx512_bf16 = BlockAttn<avx512, bf16, false>::kernel();
extern constinit const Kernel avx512_f16 = BlockAttn<avx512, f16, false>::kernel();
extern constinit const Kernel avx512_f32 = BlockAttn<avx512, float, true>::kernel();

}  // namespace tessera::block_attn
