// For architectures without a vector variant.
#include "cpu/machine.h"

namespace tessera {

uint32_t detect_features() { return 0; }

CacheSizes detect_caches() { return {0, 0, 0}; }

}  // namespace tessera
