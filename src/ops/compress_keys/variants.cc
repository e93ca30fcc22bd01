#include "ops/compress_keys/variants.h"

#include "ops/isas.h"

namespace tessera::compress_keys {

TESSERA_ISAS(TESSERA_NO_PAIRS, TESSERA_KERNELS)

// All is f32, so the variant that multiplies bf16 pairs has nothing to offer here.
std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {TESSERA_ISAS(TESSERA_NO_PAIRS, TESSERA_VARIANT)};
  return kAll;
}

}  // namespace tessera::compress_keys
