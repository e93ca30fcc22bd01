// The kernels that compress keys, best first. Dispatch, tests and benches all read this one array.
#ifndef TESSERA_OPS_COMPRESS_KEYS_VARIANTS_H_
#define TESSERA_OPS_COMPRESS_KEYS_VARIANTS_H_

#include <span>

#include "ops/choose.h"
#include "ops/compress_keys/problem.h"

namespace tessera::compress_keys {

using Variant = KernelVariant<Kernel>;

std::span<const Variant> variants();

}  // namespace tessera::compress_keys

#endif  // TESSERA_OPS_COMPRESS_KEYS_VARIANTS_H_
