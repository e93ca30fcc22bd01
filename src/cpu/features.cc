#include "cpu/features.h"

#include <cstdlib>
#include <cstring>

#include "cpu/machine.h"

namespace tessera {
namespace {

constexpr uint32_t kAvx2Level = kCpuAvx2 | kCpuFma | kCpuF16c;
constexpr uint32_t kAvx512Level = kAvx2Level | kCpuAvx512;
constexpr uint32_t kNeonBf16Level = kCpuNeon | kCpuNeonBf16;

constexpr Variant kVariants[] = {
    {"avx512bf16", kAvx512Level | kCpuAvx512Bf16},
    {"avx512", kAvx512Level},
    {"avx2", kAvx2Level},
    {"neonbf16", kNeonBf16Level},
    {"neon", kCpuNeon},
    {"scalar", 0},
};

constexpr struct {
  uint32_t bit;
  const char* name;
} kFeatureNames[] = {
    {kCpuAvx2, "avx2"},
    {kCpuFma, "fma"},
    {kCpuF16c, "f16c"},
    {kCpuAvx512, "avx512"},
    {kCpuAvx512Bf16, "avx512_bf16"},
    {kCpuNeon, "neon"},
    {kCpuNeonBf16, "bf16"},
};

struct Allowed {
  uint32_t features;
  Status status;
};

const Allowed& allowed() {
  static const Allowed* const a = [] {
    auto* result = new Allowed{};
    result->status = lower_features(detected_features(), std::getenv("TESSERA_MAX_ISA"), &result->features);
    return result;
  }();
  return *a;
}

}  // namespace

std::span<const Variant> isa_variants() { return kVariants; }

const Variant* find_variant(const char* name) {
  for (const Variant& v : kVariants) {
    if (std::strcmp(v.name, name) == 0) return &v;
  }
  return nullptr;
}

std::string variant_names() {
  std::string names;
  for (const Variant& v : kVariants) names += (names.empty() ? "" : ", ") + std::string(v.name);
  return names;
}

uint32_t cpu_features() { return allowed().features; }

uint32_t detected_features() {
  static const uint32_t features = detect_features();
  return features;
}

Status lower_features(uint32_t features, const char* max_isa, uint32_t* lowered) {
  *lowered = features;
  if (max_isa == nullptr || *max_isa == '\0') return {};
  const Variant* const top = find_variant(max_isa);
  *lowered &= top == nullptr ? 0 : top->needs;
  if (top != nullptr) return {};
  return invalid("TESSERA_MAX_ISA is \"" + std::string(max_isa) + "\"; expected " + variant_names());
}

const Status& max_isa_status() { return allowed().status; }

std::string feature_names(uint32_t features) {
  std::string names;
  for (const auto& f : kFeatureNames) {
    if (features & f.bit) names += (names.empty() ? "" : ", ") + std::string(f.name);
  }
  return names;
}

std::string why_unavailable(const Variant& variant) {
  const uint32_t missing = variant.needs & ~cpu_features();
  if (missing == 0) return {};
  return "variant " + std::string(variant.name) + " needs " + feature_names(missing) +
         ", which this CPU lacks or TESSERA_MAX_ISA forbids";
}

const CacheSizes& cache_sizes() {
  static const CacheSizes sizes = [] {
    CacheSizes s = detect_caches();
    if (s.l1d == 0) s.l1d = size_t{32} << 10;
    if (s.l2 == 0) s.l2 = size_t{512} << 10;
    if (s.l3 == 0) s.l3 = size_t{16} << 20;
    return s;
  }();
  return sizes;
}

}  // namespace tessera
