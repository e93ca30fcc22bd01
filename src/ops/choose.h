// How every operator picks its kernel: from a plain array of variants, best first. Not for files built with ISA flags.
#ifndef TESSERA_OPS_CHOOSE_H_
#define TESSERA_OPS_CHOOSE_H_

#include <cstring>
#include <span>
#include <string>

#include "core/check.h"
#include "core/status.h"
#include "cpu/features.h"
#include "tessera/tessera.h"

namespace tessera {

template <class Kernel>
struct KernelVariant {
  const char* name;  // of isa_variants()
  const Kernel* bf16;
  const Kernel* f16;  // null: the variant does not take the dtype
  const Kernel* f32;

  const Kernel* kernel(tessera_dtype dtype) const {
    return dtype == TESSERA_BF16 ? bf16 : dtype == TESSERA_F16 ? f16 : f32;
  }
};

// Why this CPU or dtype cannot have the variant; empty: it can.
template <class Kernel>
std::string why_not(const KernelVariant<Kernel>& v, tessera_dtype dtype) {
  std::string why = why_unavailable(*find_variant(v.name));
  if (!why.empty() || v.kernel(dtype) != nullptr) return why;
  return std::string("variant ") + v.name + " does not take " + dtype_name(dtype);
}

// The variant of that name, or (nullptr) the best that this CPU and dtype have; nullptr, with a complaint, if there is
// none. Texts are made for failures only.
template <class Kernel>
const KernelVariant<Kernel>* choose_variant(std::span<const KernelVariant<Kernel>> variants, const char* name,
                                            tessera_dtype dtype, Status* complaint) {
  for (const KernelVariant<Kernel>& v : variants) {
    if (name != nullptr && std::strcmp(name, v.name) != 0) continue;
    if ((find_variant(v.name)->needs & ~cpu_features()) == 0 && v.kernel(dtype) != nullptr) return &v;
    if (name != nullptr) {
      *complaint = not_implemented(why_not(v, dtype));
      return nullptr;
    }
  }
  *complaint = name == nullptr ? not_implemented(std::string("no variant of this CPU takes ") + dtype_name(dtype))
                               : not_implemented(std::string("variant ") + name + " does not exist for this operator");
  return nullptr;
}

}  // namespace tessera

#endif  // TESSERA_OPS_CHOOSE_H_
