#include "isa/neon.h"

#include "ops/compress_keys/kernel.h"

namespace tessera::compress_keys {

extern constinit const Kernel neon_bf16 = CompressKeys<neon, bf16>::kernel();
extern constinit const Kernel neon_f16 = CompressKeys<neon, f16>::kernel();
extern constinit const Kernel neon_f32 = CompressKeys<neon, float>::kernel();

}  // namespace tessera::compress_keys
