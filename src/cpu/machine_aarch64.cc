// By what Linux tells every process, and of caches in its files. Elsewhere only what every such CPU has.
#include <fstream>
#include <string>

#include "cpu/machine.h"

#if defined(__linux__)
#include <sys/auxv.h>
#endif

namespace tessera {

uint32_t detect_features() {
  uint32_t features = kCpuNeon;
#if defined(__linux__)
  constexpr unsigned long kHwcap2Bf16 = 1ul << 14;  // HWCAP2_BF16, which older headers lack
  if ((getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0) features |= kCpuNeonBf16;
#endif
  return features;
}

// One directory for each cache of the first core, with files that say "1", "Data" and "64K".
CacheSizes detect_caches() {
  CacheSizes sizes{0, 0, 0};
  for (int i = 0; i < 16; ++i) {
    const std::string place = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    int level = 0;
    size_t kilobytes = 0;
    std::string type;
    std::ifstream(place + "level") >> level;
    std::ifstream(place + "type") >> type;
    std::ifstream(place + "size") >> kilobytes;
    const size_t bytes = kilobytes << 10;
    if (level == 1 && type != "Instruction") sizes.l1d = bytes;
    if (level == 2) sizes.l2 = bytes;
    if (level == 3) sizes.l3 = bytes;
  }
  return sizes;
}

}  // namespace tessera
