#include "ops/token_attn/variants.h"

namespace tessera::token_attn {

extern const Kernel scalar_bf16, scalar_f16, scalar_f32;
#if defined(__x86_64__)
extern const Kernel avx2_bf16, avx2_f16, avx2_f32;
extern const Kernel avx512_bf16, avx512_f16, avx512_f32;
extern const Kernel avx512bf16_bf16;
#endif

std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {
#if defined(__x86_64__)
    {"avx512bf16", &avx512bf16_bf16, nullptr, nullptr},
    {"avx512", &avx512_bf16, &avx512_f16, &avx512_f32},
    {"avx2", &avx2_bf16, &avx2_f16, &avx2_f32},
#endif
    {"scalar", &scalar_bf16, &scalar_f16, &scalar_f32},
  };
  return kAll;
}

}  // namespace tessera::token_attn
