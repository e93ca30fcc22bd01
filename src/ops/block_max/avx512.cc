#include "isa/avx512.h"

#include "ops/block_max/kernel.h"

namespace tessera::block_max {

extern constinit const Kernel avx512_bf16 = BlockMax<avx512, bf16>::kernel();
extern constinit const Kernel avx512_f16 = BlockMax<avx512, f16>::kernel();
extern constinit const Kernel avx512_f32 = BlockMax<avx512, float>::kernel();

}  // namespace tessera::block_max
