#include "isa/scalar.h"

#include "ops/block_max/kernel.h"

namespace tessera::block_max {

extern constinit const Kernel scalar_bf16 = BlockMax<scalar, bf16>::kernel();
extern constinit const Kernel scalar_f16 = BlockMax<scalar, f16>::kernel();
extern constinit const Kernel scalar_f32 = BlockMax<scalar, float>::kernel();

}  // namespace tessera::block_max
