#include "isa/avx2.h"

#include "ops/ceiling/kernel.h"

namespace tessera::ceiling {

extern constinit const Kernel avx2_loops = Ceiling<avx2, 14>::kernel();

}  // namespace tessera::ceiling
