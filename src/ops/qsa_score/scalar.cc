#include "isa/scalar.h"

#include "ops/qsa_score/kernel.h"

namespace tessera::qsa_score {

extern constinit const Kernel scalar_bf16 = QsaScore<scalar, bf16>::kernel();
extern constinit const Kernel scalar_f16 = QsaScore<scalar, f16>::kernel();
extern constinit const Kernel scalar_f32 = QsaScore<scalar, float>::kernel();

}  // namespace tessera::qsa_score
