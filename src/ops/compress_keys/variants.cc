#include "ops/compress_keys/variants.h"

namespace tessera::compress_keys {

extern const Kernel scalar_bf16, scalar_f16, scalar_f32;
#if defined(__x86_64__)
extern const Kernel avx2_bf16, avx2_f16, avx2_f32;
extern const Kernel avx512_bf16, avx512_f16, avx512_f32;
#endif

// All is f32, so the variant that multiplies bf16 pairs has nothing to offer here.
std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {
#if defined(__x86_64__)
    {"avx512", &avx512_bf16, &avx512_f16, &avx512_f32},
    {"avx2", &avx2_bf16, &avx2_f16, &avx2_f32},
#endif
    {"scalar", &scalar_bf16, &scalar_f16, &scalar_f32},
  };
  return kAll;
}

}  // namespace tessera::compress_keys
