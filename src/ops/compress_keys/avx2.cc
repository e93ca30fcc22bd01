#include "isa/avx2.h"

#include "ops/compress_keys/kernel.h"

namespace tessera::compress_keys {

extern constinit const Kernel avx2_bf16 = CompressKeys<avx2, bf16>::kernel();
extern constinit const Kernel avx2_f16 = CompressKeys<avx2, f16>::kernel();
extern constinit const Kernel avx2_f32 = CompressKeys<avx2, float>::kernel();

}  // namespace tessera::compress_keys
