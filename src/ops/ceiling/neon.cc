#include "isa/neon.h"

#include "ops/ceiling/kernel.h"

namespace tessera::ceiling {

extern constinit const Kernel neon_loops = Ceiling<neon, 24>::kernel();

}  // namespace tessera::ceiling
