#include "isa/avx2.h"

#include "ops/merge_states/kernel.h"

namespace tessera::merge_states {

extern constinit const Kernel avx2_bf16 = MergeStates<avx2, bf16>::kernel();
extern constinit const Kernel avx2_f16 = MergeStates<avx2, f16>::kernel();
extern constinit const Kernel avx2_f32 = MergeStates<avx2, float>::kernel();

}  // namespace tessera::merge_states
