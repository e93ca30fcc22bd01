#include "isa/avx512.h"

#include "ops/block_pool/kernel.h"

namespace tessera::block_pool {

extern constinit const Kernel avx512_bf16 = BlockPool<avx512, bf16>::kernel();
extern constinit const Kernel avx512_f16 = BlockPool<avx512, f16>::kernel();
extern constinit const Kernel avx512_f32 = BlockPool<avx512, float>::kernel();

}  // namespace tessera::block_pool
