#include "ops/block_pool/variants.h"

#include "ops/isas.h"

namespace tessera::block_pool {

TESSERA_ISAS(TESSERA_NO_PAIRS, TESSERA_KERNELS)

// Sums of bf16 keys do not fit into bf16, so the variant that multiplies bf16 pairs has nothing to offer here.
std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {TESSERA_ISAS(TESSERA_NO_PAIRS, TESSERA_VARIANT)};
  return kAll;
}

}  // namespace tessera::block_pool
