#include "isa/scalar.h"

#include "ops/merge_states/kernel.h"

namespace tessera::merge_states {

extern constinit const Kernel scalar_bf16 = MergeStates<scalar, bf16>::kernel();
extern constinit const Kernel scalar_f16 = MergeStates<scalar, f16>::kernel();
extern constinit const Kernel scalar_f32 = MergeStates<scalar, float>::kernel();

}  // namespace tessera::merge_states
