#include "isa/avx512bf16.h"

#include "ops/qsa_score/kernel.h"

namespace tessera::qsa_score {

extern constinit const Kernel avx512bf16_bf16 = QsaScore<avx512bf16, bf16>::kernel();

}  // namespace tessera::qsa_score
