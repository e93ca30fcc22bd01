#include "isa/avx2.h"

#include "ops/block_pool/kernel.h"

namespace tessera::block_pool {

extern constinit const Kernel avx2_bf16 = BlockPool<avx2, bf16>::kernel();
extern constinit const Kernel avx2_f16 = BlockPool<avx2, f16>::kernel();
extern constinit const Kernel avx2_f32 = BlockPool<avx2, float>::kernel();

}  // namespace tessera::block_pool
