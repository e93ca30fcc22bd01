// MXCSR. The x87 unit is not used.
#include <xmmintrin.h>

#include "cpu/float_environment.h"

namespace tessera {

FloatEnvironment::FloatEnvironment() noexcept : hosts_{_mm_getcsr()} { _mm_setcsr(0x1f80); }

FloatEnvironment::~FloatEnvironment() { _mm_setcsr(static_cast<unsigned>(hosts_[0])); }

}  // namespace tessera
