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

// The dtype of a call, or of its keys where its queries have another.
struct Dtypes {
  tessera_dtype keys;
  tessera_dtype queries;

  Dtypes(tessera_dtype all) : keys(all), queries(all) {}
  Dtypes(tessera_dtype of_keys, tessera_dtype of_queries) : keys(of_keys), queries(of_queries) {}
  bool mixed() const { return keys != queries; }
  std::string text() const {
    return mixed() ? std::string(dtype_name(queries)) + " queries over " + dtype_name(keys) + " keys"
                   : dtype_name(keys);
  }
};

template <class Problem>
Dtypes dtypes_of(const Problem& p) {
  if constexpr (requires { p.q_dtype; }) {
    return {p.dtype, p.q_dtype};
  } else {
    return p.dtype;
  }
}

template <class Kernel>
struct KernelVariant {
  const char* name;  // of isa_variants()
  const Kernel* bf16;
  const Kernel* f16;  // null: the variant does not take the dtype
  const Kernel* f32;
  bool mixes = false;  // takes f32 queries over other keys too

  const Kernel* kernel(Dtypes dtypes) const {
    if (dtypes.mixed() && !mixes) return nullptr;
    return dtypes.keys == TESSERA_BF16 ? bf16 : dtypes.keys == TESSERA_F16 ? f16 : f32;
  }
};

// Why this CPU or these dtypes cannot have the variant; empty: they can.
template <class Kernel>
std::string why_not(const KernelVariant<Kernel>& v, Dtypes dtypes) {
  std::string why = why_unavailable(*find_variant(v.name));
  if (!why.empty() || v.kernel(dtypes) != nullptr) return why;
  return std::string("variant ") + v.name + " does not take " + dtypes.text();
}

// The variant of that name, or (nullptr) the best that this CPU and the dtypes have; nullptr, with a complaint, if there is
// none. Texts are made for failures only.
template <class Kernel>
const KernelVariant<Kernel>* choose_variant(std::span<const KernelVariant<Kernel>> variants, const char* name,
                                            Dtypes dtypes, Status* complaint) {
  for (const KernelVariant<Kernel>& v : variants) {
    if (name != nullptr && std::strcmp(name, v.name) != 0) continue;
    if ((find_variant(v.name)->needs & ~cpu_features()) == 0 && v.kernel(dtypes) != nullptr) return &v;
    if (name != nullptr) {
      *complaint = not_implemented(why_not(v, dtypes));
      return nullptr;
    }
  }
  *complaint = name == nullptr ? not_implemented("no variant of this CPU takes " + dtypes.text())
                               : not_implemented(std::string("variant ") + name + " does not exist for this operator");
  return nullptr;
}

// What explain() says of the variants, best first: why each was not taken, up to the one that was. Forced: by name.
template <class Kernel>
std::string explain_variants(std::span<const KernelVariant<Kernel>> variants, const Kernel* taken, Dtypes dtypes,
                             bool forced) {
  std::string text;
  for (const KernelVariant<Kernel>& v : variants) {
    if (v.kernel(dtypes) == taken) return text + "variant: " + v.name + "\n";
    text += (forced ? std::string("variant ") + v.name + ": another was asked for" : why_not(v, dtypes)) + "\n";
  }
  return text;
}

}  // namespace tessera

#endif  // TESSERA_OPS_CHOOSE_H_
