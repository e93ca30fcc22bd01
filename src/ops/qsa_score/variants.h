// The kernels of QSA's indexer, best first. Dispatch, tests and benches all read this one array.
#ifndef TESSERA_OPS_QSA_SCORE_VARIANTS_H_
#define TESSERA_OPS_QSA_SCORE_VARIANTS_H_

#include <span>

#include "ops/choose.h"
#include "ops/qsa_score/plan.h"

namespace tessera::qsa_score {

using Variant = KernelVariant<Kernel>;

std::span<const Variant> variants();

}  // namespace tessera::qsa_score

#endif  // TESSERA_OPS_QSA_SCORE_VARIANTS_H_
