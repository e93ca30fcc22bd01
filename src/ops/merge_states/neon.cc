#include "isa/neon.h"

#include "ops/merge_states/kernel.h"

namespace tessera::merge_states {

extern constinit const Kernel neon_bf16 = MergeStates<neon, bf16>::kernel();
extern constinit const Kernel neon_f16 = MergeStates<neon, f16>::kernel();
extern constinit const Kernel neon_f32 = MergeStates<neon, float>::kernel();

}  // namespace tessera::merge_states
