#include "isa/scalar.h"

#include "ops/compress_keys/kernel.h"

namespace tessera::compress_keys {

extern constinit const Kernel scalar_bf16 = CompressKeys<scalar, bf16>::kernel();
extern constinit const Kernel scalar_f16 = CompressKeys<scalar, f16>::kernel();
extern constinit const Kernel scalar_f32 = CompressKeys<scalar, float>::kernel();

}  // namespace tessera::compress_keys
