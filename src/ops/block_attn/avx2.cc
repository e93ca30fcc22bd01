#include "isa/avx2.h"

#include "ops/block_attn/kernel.h"

namespace tessera::block_attn {

extern constinit const Kernel avx2_bf16 = BlockAttn<avx2, bf16, false>::kernel();
extern constinit const Kernel avx2_f16 = BlockAttn<avx2, f16, false>::kernel();
extern constinit const Kernel avx2_f32 = BlockAttn<avx2, float, true>::kernel();

}  // namespace tessera::block_attn
