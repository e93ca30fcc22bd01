#include "ops/block_max/variants.h"

#include "ops/isas.h"

namespace tessera::block_max {

TESSERA_ISAS(TESSERA_PAIR_KERNELS, TESSERA_KERNELS)

std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {TESSERA_ISAS(TESSERA_PAIR_VARIANT, TESSERA_VARIANT)};
  return kAll;
}

}  // namespace tessera::block_max
