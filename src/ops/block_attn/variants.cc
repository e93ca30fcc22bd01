#include "ops/block_attn/variants.h"

#include "ops/isas.h"

namespace tessera::block_attn {

TESSERA_ISAS(TESSERA_PAIR_KERNELS, TESSERA_KERNELS)

std::span<const Variant> variants() {
  // Operands of all but the first are f32, and so may queries be.
  static constexpr Variant kAll[] = {TESSERA_ISAS(TESSERA_PAIR_VARIANT, TESSERA_MIXING_VARIANT)};
  return kAll;
}

}  // namespace tessera::block_attn
