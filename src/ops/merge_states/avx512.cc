#include "isa/avx512.h"

#include "ops/merge_states/kernel.h"

namespace tessera::merge_states {

extern constinit const Kernel avx512_bf16 = MergeStates<avx512, bf16>::kernel();
extern constinit const Kernel avx512_f16 = MergeStates<avx512, f16>::kernel();
extern constinit const Kernel avx512_f32 = MergeStates<avx512, float>::kernel();

}  // namespace tessera::merge_states
