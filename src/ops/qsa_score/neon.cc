#include "isa/neon.h"

#include "ops/qsa_score/kernel.h"

namespace tessera::qsa_score {

extern constinit const Kernel neon_bf16 = QsaScore<neon, bf16>::kernel();
extern constinit const Kernel neon_f16 = QsaScore<neon, f16>::kernel();
extern constinit const Kernel neon_f32 = QsaScore<neon, float>::kernel();

}  // namespace tessera::qsa_score
