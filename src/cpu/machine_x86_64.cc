// By the instruction `cpuid`.
#include <cpuid.h>

#include "cpu/machine.h"

namespace tessera {
namespace {

struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

// All zero if the CPU does not have the leaf.
Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

// XCR0: the register files that the operating system saves on a context switch.
uint64_t enabled_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

constexpr bool has(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

}  // namespace

uint32_t detect_features() {
  constexpr uint32_t kOsxsave = 1u << 27, kAvx = 1u << 28;
  const Registers basic = cpuid(1, 0);
  if (!has(basic.c, kOsxsave | kAvx)) return 0;
  const uint64_t state = enabled_state();
  constexpr uint64_t kYmmState = 0x06, kZmmState = 0xe6;
  if (!has(state, kYmmState)) return 0;

  const Registers extended = cpuid(7, 0);
  uint32_t features = 0;
  if (has(extended.b, 1u << 5)) features |= kCpuAvx2;
  if (has(basic.c, 1u << 12)) features |= kCpuFma;
  if (has(basic.c, 1u << 29)) features |= kCpuF16c;
#ifdef TESSERA_EMULATE_AVX512
  // Tests only: the AVX-512 files of this build are translated to AVX2 by SIMDe.
  if (has(features, kCpuAvx2 | kCpuFma | kCpuF16c)) features |= kCpuAvx512 | kCpuAvx512Bf16;
#else
  constexpr uint32_t kAvx512Bits = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  if (has(state, kZmmState) && has(extended.b, kAvx512Bits)) {
    features |= kCpuAvx512;
    if (has(cpuid(7, 1).a, 1u << 5)) features |= kCpuAvx512Bf16;
  }
#endif
  return features;
}

// Intel's leaf 4 and AMD's 0x8000001d list the caches in the same layout; each vendor leaves the other's empty.
CacheSizes detect_caches() {
  CacheSizes sizes{0, 0, 0};
  for (const uint32_t leaf : {0x4u, 0x8000001du}) {
    for (uint32_t i = 0; i < 16; ++i) {
      const Registers r = cpuid(leaf, i);
      const uint32_t type = r.a & 0x1f;  // 1: data, 2: instruction, 3: unified
      if (type == 0) break;
      const uint32_t level = (r.a >> 5) & 0x7;
      const size_t ways = (r.b >> 22) + 1, partitions = ((r.b >> 12) & 0x3ff) + 1, line = (r.b & 0xfff) + 1;
      const size_t bytes = ways * partitions * line * (size_t{r.c} + 1);
      if (level == 1 && type != 2) sizes.l1d = bytes;
      if (level == 2) sizes.l2 = bytes;
      if (level == 3) sizes.l3 = bytes;
    }
  }
  return sizes;
}

}  // namespace tessera
