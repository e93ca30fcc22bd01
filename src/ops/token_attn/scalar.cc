#include "isa/scalar.h"

#include "ops/token_attn/kernel.h"

namespace tessera::token_attn {

extern constinit const Kernel scalar_bf16 = TokenAttn<scalar, bf16, false>::kernel();
extern constinit const Kernel scalar_f16 = TokenAttn<scalar, f16, false>::kernel();
extern constinit const Kernel scalar_f32 = TokenAttn<scalar, float, true>::kernel();

}  // namespace tessera::token_attn
