#include "ops/qsa_score/variants.h"

#include "ops/isas.h"

namespace tessera::qsa_score {

TESSERA_ISAS(TESSERA_PAIR_KERNELS, TESSERA_KERNELS)

std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {TESSERA_ISAS(TESSERA_PAIR_VARIANT, TESSERA_VARIANT)};
  return kAll;
}

}  // namespace tessera::qsa_score
