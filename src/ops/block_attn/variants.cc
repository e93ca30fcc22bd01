#include "ops/block_attn/variants.h"

#include <cstring>

#include "core/check.h"
#include "cpu/features.h"

namespace tessera::block_attn {

extern const Kernel scalar_bf16, scalar_f16, scalar_f32;
#if defined(__x86_64__)
extern const Kernel avx2_bf16, avx2_f16, avx2_f32;
extern const Kernel avx512_bf16, avx512_f16, avx512_f32;
extern const Kernel avx512bf16_bf16;
#endif

std::span<const Variant> variants() {
  static constexpr Variant kAll[] = {
#if defined(__x86_64__)
      {"avx512bf16", &avx512bf16_bf16, nullptr, nullptr},
      {"avx512", &avx512_bf16, &avx512_f16, &avx512_f32},
      {"avx2", &avx2_bf16, &avx2_f16, &avx2_f32},
#endif
      {"scalar", &scalar_bf16, &scalar_f16, &scalar_f32},
  };
  return kAll;
}

Status choose_variant(const char* name, tessera_dtype dtype, const Variant** chosen, std::string* reasons) {
  std::string last;
  for (const Variant& v : variants()) {
    if (name != nullptr && std::strcmp(name, v.name) != 0) continue;
    const uint32_t missing = find_variant(v.name)->needs & ~cpu_features();
    if (missing != 0) {
      last = std::string("variant ") + v.name + " needs " + feature_names(missing) + ", which this CPU lacks or TESSERA_MAX_ISA forbids";
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

}  // namespace tessera::block_attn
