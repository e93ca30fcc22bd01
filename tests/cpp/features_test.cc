// CPU features, their lowering by TESSERA_MAX_ISA, cache sizes, and what the C ABI says about variants.
#include "cpu/features.h"

#include <gtest/gtest.h>

#include <string>

#include "tessera/tessera.h"

namespace tessera {
namespace {

constexpr uint32_t kAll = kCpuAvx2 | kCpuFma | kCpuF16c | kCpuAvx512 | kCpuAvx512Bf16;
constexpr uint32_t kAllOfArm = kCpuNeon | kCpuNeonBf16;

uint32_t lowered(const char* max_isa, uint32_t from = kAll) {
  uint32_t features = 0;
  EXPECT_TRUE(lower_features(from, max_isa, &features).ok());
  return features;
}

TEST(Features, VariantsFromBestToScalar) {
  const auto variants = isa_variants();
  for (const uint32_t architecture : {kAll, kAllOfArm}) {
    uint32_t before = architecture;  // each needs all that the next one of its architecture needs, and more
    for (const Variant& v : variants) {
      if ((v.needs & ~architecture) != 0) continue;
      EXPECT_EQ(before & v.needs, v.needs) << v.name;
      EXPECT_TRUE(before != v.needs || v.needs == architecture) << v.name;
      before = v.needs;
    }
    EXPECT_EQ(before, 0u);
  }
  EXPECT_STREQ(variants.back().name, "scalar");
  EXPECT_EQ(variants.back().needs, 0u);
  EXPECT_EQ(variant_names(), "avx512bf16, avx512, avx2, neonbf16, neon, scalar");
  EXPECT_EQ(find_variant("avx"), nullptr);
}

TEST(Features, MaxIsaLowers) {
  EXPECT_EQ(lowered(nullptr), kAll);
  EXPECT_EQ(lowered(""), kAll);
  EXPECT_EQ(lowered("avx512bf16"), kAll);
  EXPECT_EQ(lowered("avx512"), kAll & ~kCpuAvx512Bf16);
  EXPECT_EQ(lowered("avx2"), kCpuAvx2 | kCpuFma | kCpuF16c);
  EXPECT_EQ(lowered("scalar"), 0u);
  EXPECT_EQ(lowered("neonbf16", kAllOfArm), kAllOfArm);
  EXPECT_EQ(lowered("neon", kAllOfArm), kCpuNeon);
  EXPECT_EQ(lowered("avx2", kAllOfArm), 0u);
}

TEST(Features, MaxIsaAddsNothing) {
  uint32_t features = kAll;
  EXPECT_TRUE(lower_features(kCpuAvx2, "avx512bf16", &features).ok());
  EXPECT_EQ(features, kCpuAvx2);
}

TEST(Features, UnknownMaxIsaIsAnError) {
  uint32_t features = kAll;
  const Status s = lower_features(kAll, "AVX2", &features);
  EXPECT_EQ(s.code, TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(s.text, "TESSERA_MAX_ISA is \"AVX2\"; expected avx512bf16, avx512, avx2, neonbf16, neon, scalar");
  EXPECT_EQ(features, 0u);
}

TEST(Features, AgreeWithTheCompilersView) {
  const uint32_t features = detected_features();
#if defined(__x86_64__) && !defined(TESSERA_EMULATE_AVX512)
  __builtin_cpu_init();
  EXPECT_EQ((features & kCpuAvx2) != 0, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ((features & kCpuFma) != 0, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ((features & kCpuAvx512) != 0, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
#elif defined(__aarch64__)
  EXPECT_EQ(features & kCpuNeon, kCpuNeon);
  EXPECT_EQ(features & ~kAllOfArm, 0u);
#elif !defined(__x86_64__)
  EXPECT_EQ(features, 0u);
#endif
  EXPECT_EQ(cpu_features() & ~features, 0u);
}

TEST(Features, Names) {
  EXPECT_EQ(feature_names(0), "");
  EXPECT_EQ(feature_names(kCpuFma | kCpuAvx512Bf16), "fma, avx512_bf16");
}

TEST(Features, VariantsOfTheCAbi) {
  ASSERT_EQ(tessera_num_variants(), static_cast<int32_t>(isa_variants().size()));
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    const Variant& v = isa_variants()[static_cast<size_t>(i)];
    EXPECT_STREQ(tessera_variant_name(i), v.name);
    EXPECT_EQ(tessera_variant_available(i) != 0, why_unavailable(v).empty());
  }
  EXPECT_EQ(tessera_variant_available(tessera_num_variants() - 1), 1) << "scalar is always there";
  for (const int32_t outside : {-1, tessera_num_variants()}) {
    EXPECT_EQ(tessera_variant_name(outside), nullptr);
    EXPECT_EQ(tessera_variant_available(outside), 0);
  }
}

TEST(Caches, SizesArePlausible) {
  const CacheSizes& c = cache_sizes();
  EXPECT_GE(c.l1d, size_t{8} << 10);
  EXPECT_LE(c.l1d, size_t{1} << 20);
  EXPECT_GE(c.l2, c.l1d);
  EXPECT_GE(c.l3, size_t{1} << 20);
}

}  // namespace
}  // namespace tessera
