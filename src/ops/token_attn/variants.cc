#include "ops/token_attn/variants.h"

#include "ops/isas.h"

namespace tessera::token_attn {

TESSERA_ISAS(TESSERA_PAIR_KERNELS, TESSERA_KERNELS)

std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {TESSERA_ISAS(TESSERA_PAIR_VARIANT, TESSERA_VARIANT)};
  return kAll;
}

}  // namespace tessera::token_attn
