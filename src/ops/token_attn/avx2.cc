#include "isa/avx2.h"

#include "ops/token_attn/kernel.h"

namespace tessera::token_attn {

extern constinit const Kernel avx2_bf16 = TokenAttn<avx2, bf16, false>::kernel();
extern constinit const Kernel avx2_f16 = TokenAttn<avx2, f16, false>::kernel();
extern constinit const Kernel avx2_f32 = TokenAttn<avx2, float, true>::kernel();

}  // namespace tessera::token_attn
