#include "isa/avx2.h"

#include "ops/qsa_score/kernel.h"

namespace tessera::qsa_score {

extern constinit const Kernel avx2_bf16 = QsaScore<avx2, bf16>::kernel();
extern constinit const Kernel avx2_f16 = QsaScore<avx2, f16>::kernel();
extern constinit const Kernel avx2_f32 = QsaScore<avx2, float>::kernel();

}  // namespace tessera::qsa_score
