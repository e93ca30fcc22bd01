// Tests of the merges run once for each of their kernels that this CPU can run.
#ifndef TESSERA_TESTS_MERGE_VARIANTS_H_
#define TESSERA_TESTS_MERGE_VARIANTS_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/merge_states/variants.h"
#include "tessera/tessera.h"

namespace tessera::test {

inline std::vector<std::string> merge_variants() {
  std::vector<std::string> names;
  for (const merge_states::Variant& v : merge_states::variants()) {
    if (why_unavailable(*find_variant(v.name)).empty()) names.emplace_back(v.name);
  }
  return names;
}

class WithMergeVariant : public testing::TestWithParam<std::string> {
 protected:
  WithMergeVariant() { chosen.variant = GetParam().c_str(); }

  tessera_context chosen = {};  // the variant and otherwise the defaults
};

}  // namespace tessera::test

#endif  // TESSERA_TESTS_MERGE_VARIANTS_H_
