#include "isa/scalar.h"

#include "ops/block_pool/kernel.h"

namespace tessera::block_pool {

extern constinit const Kernel scalar_bf16 = BlockPool<scalar, bf16>::kernel();
extern constinit const Kernel scalar_f16 = BlockPool<scalar, f16>::kernel();
extern constinit const Kernel scalar_f32 = BlockPool<scalar, float>::kernel();

}  // namespace tessera::block_pool
