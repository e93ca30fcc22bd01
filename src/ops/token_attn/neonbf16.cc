#include "isa/neonbf16.h"

#include "ops/token_attn/kernel.h"

namespace tessera::token_attn {

extern constinit const Kernel neonbf16_bf16 = TokenAttn<neonbf16, bf16, false>::kernel();

}  // namespace tessera::token_attn
