#include "ops/topk_blocks/variants.h"

#include "ops/isas.h"

namespace tessera::topk_blocks {

#define TESSERA_SCORE_KERNEL(isa) extern const Kernel isa##_f32;
#define TESSERA_SCORE_VARIANT(isa) {#isa, nullptr, nullptr, &isa##_f32},

TESSERA_ISAS(TESSERA_NO_PAIRS, TESSERA_SCORE_KERNEL)

// Scores are f32.
std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {TESSERA_ISAS(TESSERA_NO_PAIRS, TESSERA_SCORE_VARIANT)};
  return kAll;
}

}  // namespace tessera::topk_blocks
