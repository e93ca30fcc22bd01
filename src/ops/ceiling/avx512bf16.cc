#include "isa/avx512bf16.h"

#include "ops/ceiling/kernel.h"

namespace tessera::ceiling {

extern constinit const Kernel avx512bf16_loops = Ceiling<avx512bf16, 24>::kernel();

}  // namespace tessera::ceiling
