#include "isa/scalar.h"

#include "ops/ceiling/kernel.h"

namespace tessera::ceiling {

extern constinit const Kernel scalar_loops = Ceiling<scalar, 14>::kernel();

}  // namespace tessera::ceiling
