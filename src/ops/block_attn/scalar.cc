#include "isa/scalar.h"

#include "ops/block_attn/kernel.h"

namespace tessera::block_attn {

extern constinit const Kernel scalar_bf16 = BlockAttn<scalar, bf16, false>::kernel();
extern constinit const Kernel scalar_f16 = BlockAttn<scalar, f16, false>::kernel();
extern constinit const Kernel scalar_f32 = BlockAttn<scalar, float, true>::kernel();

}  // namespace tessera::block_attn
