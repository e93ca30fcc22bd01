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

// The variant of that name, or (nullptr) the best that this CPU and dtype have. `reasons`, unless null, gets one line
// per variant passed over.
template <class Kernel>
Status choose_variant(std::span<const KernelVariant<Kernel>> variants, const char* name, tessera_dtype dtype,
                      const KernelVariant<Kernel>** chosen, std::string* reasons = nullptr) {
  std::string last;
  for (const KernelVariant<Kernel>& v : variants) {
    if (name != nullptr && std::strcmp(name, v.name) != 0) continue;
    const uint32_t missing = find_variant(v.name)->needs & ~cpu_features();
    if (missing != 0) {
      last = std::string("variant ") + v.name + " needs " + feature_names(missing) +
             ", which this CPU lacks or TESSERA_MAX_ISA forbids";
    } else if (v.kernel(dtype) == nullptr) {
      last = std::string("variant ") + v.name + " does not take " + dtype_name(dtype);
    } else {
      *chosen = &v;
      return {};
    }
    if (reasons != nullptr) *reasons += last + "\n";
  }
  return not_implemented(last.empty() ? std::string("variant ") + name + " does not exist for this operator" : last);
}

}  // namespace tessera

#endif  // TESSERA_OPS_CHOOSE_H_
