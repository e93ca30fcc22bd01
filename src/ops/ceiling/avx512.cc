#include "isa/avx512.h"

#include "ops/ceiling/kernel.h"

namespace tessera::ceiling {

extern constinit const Kernel avx512_loops = Ceiling<avx512, 24>::kernel();

}  // namespace tessera::ceiling
