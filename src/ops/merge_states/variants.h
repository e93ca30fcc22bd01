// The kernels of the merges, best first; the dtype is that of out. Dispatch, tests and benches all read this one array.
#ifndef TESSERA_OPS_MERGE_STATES_VARIANTS_H_
#define TESSERA_OPS_MERGE_STATES_VARIANTS_H_

#include <span>

#include "ops/choose.h"
#include "ops/merge_states/problem.h"

namespace tessera::merge_states {

using Variant = KernelVariant<Kernel>;

std::span<const Variant> variants();

}  // namespace tessera::merge_states

#endif  // TESSERA_OPS_MERGE_STATES_VARIANTS_H_
