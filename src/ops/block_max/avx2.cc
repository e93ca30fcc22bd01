#include "isa/avx2.h"

#include "ops/block_max/kernel.h"

namespace tessera::block_max {

extern constinit const Kernel avx2_bf16 = BlockMax<avx2, bf16>::kernel();
extern constinit const Kernel avx2_f16 = BlockMax<avx2, f16>::kernel();
extern constinit const Kernel avx2_f32 = BlockMax<avx2, float>::kernel();

}  // namespace tessera::block_max
