// What this CPU and its operating system can run, lowered by the environment variable TESSERA_MAX_ISA.
#ifndef TESSERA_CPU_FEATURES_H_
#define TESSERA_CPU_FEATURES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/status.h"

namespace tessera {

enum CpuFeature : uint32_t {
  kCpuAvx2 = 1u << 0,
  kCpuFma = 1u << 1,
  kCpuF16c = 1u << 2,
  kCpuAvx512 = 1u << 3,  // F, BW, VL and DQ together
  kCpuAvx512Bf16 = 1u << 4,
  kCpuNeon = 1u << 5,
  kCpuNeonBf16 = 1u << 6,
};

// A family of kernels: one ISA struct, one file per operator.
struct Variant {
  const char* name;
  uint32_t needs;  // CpuFeature bits
};

// All variants of the library, best first within an architecture, scalar last; the same list on every machine.
std::span<const Variant> isa_variants();
const Variant* find_variant(const char* name);  // nullptr: no such variant
std::string variant_names();                    // "avx512bf16, avx512, ..., scalar", for messages

// Features present and allowed. Read once; 0 on architectures without a vector variant.
uint32_t cpu_features();

// Features that the machine has, whatever TESSERA_MAX_ISA says.
uint32_t detected_features();

// `features` lowered to what the variant `max_isa` needs (nullptr or "": unchanged). An unknown name is an error and
// lowers to nothing.
Status lower_features(uint32_t features, const char* max_isa, uint32_t* lowered);

// Not ok if TESSERA_MAX_ISA names no variant. check_context() reports it from every call.
const Status& max_isa_status();

// "avx2, fma", for messages that say what is missing.
std::string feature_names(uint32_t features);

// "" if cpu_features() has all that the variant needs, else a sentence for a NotImplementedError.
std::string why_unavailable(const Variant& variant);

// Bytes of one instance of each level, as one core sees it.
struct CacheSizes {
  size_t l1d, l2, l3;
};
const CacheSizes& cache_sizes();  // typical ones where the machine does not tell

// Tells the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tessera

#endif  // TESSERA_CPU_FEATURES_H_
