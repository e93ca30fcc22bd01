#include "isa/avx512.h"

#include "ops/compress_keys/kernel.h"

namespace tessera::compress_keys {

extern constinit const Kernel avx512_bf16 = CompressKeys<avx512, bf16>::kernel();
extern constinit const Kernel avx512_f16 = CompressKeys<avx512, f16>::kernel();
extern constinit const Kernel avx512_f32 = CompressKeys<avx512, float>::kernel();

}  // namespace tessera::compress_keys
