#include "isa/avx512.h"

#include "ops/token_attn/kernel.h"

namespace tessera::token_attn {

extern constinit const Kernel avx512_bf16 = TokenAttn<avx512, bf16, false>::kernel();
extern constinit const Kernel avx512_f16 = TokenAttn<avx512, f16, false>::kernel();
extern constinit const Kernel avx512_f32 = TokenAttn<avx512, float, true>::kernel();

}  // namespace tessera::token_attn
