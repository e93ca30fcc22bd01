#include "isa/avx512bf16.h"

#include "ops/token_attn/kernel.h"

namespace tessera::token_attn {

extern constinit const Kernel avx512bf16_bf16 = TokenAttn<avx512bf16, bf16, false>::kernel();

}  // namespace tessera::token_attn
