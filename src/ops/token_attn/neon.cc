#include "isa/neon.h"

#include "ops/token_attn/kernel.h"

namespace tessera::token_attn {

extern constinit const Kernel neon_bf16 = TokenAttn<neon, bf16, false>::kernel();
extern constinit const Kernel neon_f16 = TokenAttn<neon, f16, false>::kernel();
extern constinit const Kernel neon_f32 = TokenAttn<neon, float, true>::kernel();

}  // namespace tessera::token_attn
