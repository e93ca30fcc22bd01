#include "isa/neonbf16.h"

#include "ops/qsa_score/kernel.h"

namespace tessera::qsa_score {

extern constinit const Kernel neonbf16_bf16 = QsaScore<neonbf16, bf16>::kernel();

}  // namespace tessera::qsa_score
