#include "ops/merge_states/variants.h"

#include "ops/isas.h"

namespace tessera::merge_states {

TESSERA_ISAS(TESSERA_NO_PAIRS, TESSERA_KERNELS)

// Weights are f32, so the variant that multiplies bf16 pairs has nothing to offer here.
std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {TESSERA_ISAS(TESSERA_NO_PAIRS, TESSERA_VARIANT)};
  return kAll;
}

}  // namespace tessera::merge_states
