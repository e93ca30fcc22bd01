#include "isa/avx512.h"

#include "ops/qsa_score/kernel.h"

namespace tessera::qsa_score {

extern constinit const Kernel avx512_bf16 = QsaScore<avx512, bf16>::kernel();
extern constinit const Kernel avx512_f16 = QsaScore<avx512, f16>::kernel();
extern constinit const Kernel avx512_f32 = QsaScore<avx512, float>::kernel();

}  // namespace tessera::qsa_score
