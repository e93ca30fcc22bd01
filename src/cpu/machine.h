// What this machine tells of itself. CMake compiles one of machine_<architecture>.cc.
#ifndef TESSERA_CPU_MACHINE_H_
#define TESSERA_CPU_MACHINE_H_

#include <cstdint>

#include "cpu/features.h"

namespace tessera {

// The features that both the CPU and its operating system have: CpuFeature bits.
uint32_t detect_features();

// Zero for what is not told.
CacheSizes detect_caches();

}  // namespace tessera

#endif  // TESSERA_CPU_MACHINE_H_
