// The kernels of block attention, best first. Dispatch, tests and benches all read this one array.
#ifndef TESSERA_OPS_BLOCK_ATTN_VARIANTS_H_
#define TESSERA_OPS_BLOCK_ATTN_VARIANTS_H_

#include <span>
#include <string>

#include "core/status.h"
#include "ops/block_attn/plan.h"
#include "ops/block_attn/problem.h"

namespace tessera::block_attn {

struct Variant {
  const char* name;  // of isa_variants()
  const Kernel* bf16;
  const Kernel* f16;  // null: the variant does not take the dtype
  const Kernel* f32;

  const Kernel* kernel(tessera_dtype dtype) const {
    return dtype == TESSERA_BF16 ? bf16 : dtype == TESSERA_F16 ? f16 : f32;
  }
};

std::span<const Variant> variants();

// The variant of that name, or (nullptr) the best that this CPU and dtype have. `reasons`, unless null, gets one line
// per variant passed over.
Status choose_variant(const char* name, tessera_dtype dtype, const Variant** chosen, std::string* reasons);

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_VARIANTS_H_
