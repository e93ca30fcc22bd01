#include "isa/neonbf16.h"

#include "ops/ceiling/kernel.h"

namespace tessera::ceiling {

extern constinit const Kernel neonbf16_loops = Ceiling<neonbf16, 24>::kernel();

}  // namespace tessera::ceiling
