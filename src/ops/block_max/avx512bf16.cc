#include "isa/avx512bf16.h"

#include "ops/block_max/kernel.h"

namespace tessera::block_max {

extern constinit const Kernel avx512bf16_bf16 = BlockMax<avx512bf16, bf16>::kernel();

}  // namespace tessera::block_max
