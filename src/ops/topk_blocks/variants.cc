#include "ops/topk_blocks/variants.h"

namespace tessera::topk_blocks {

extern const Kernel scalar_f32;
#if defined(__x86_64__)
extern const Kernel avx2_f32, avx512_f32;
#endif

std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {
#if defined(__x86_64__)
    {"avx512", nullptr, nullptr, &avx512_f32},
    {"avx2", nullptr, nullptr, &avx2_f32},
#endif
    {"scalar", nullptr, nullptr, &scalar_f32},
  };
  return kAll;
}

}  // namespace tessera::topk_blocks
