#include "api/call.h"
#include "cpu/features.h"
#include "runtime/pool.h"
#include "tessera/tessera.h"

namespace {

const tessera::Variant* variant_at(int32_t i) {
  const auto variants = tessera::isa_variants();
  return i >= 0 && i < tessera_num_variants() ? &variants[static_cast<size_t>(i)] : nullptr;
}

}  // namespace

tessera_status tessera_set_num_threads(int32_t n) {
  return tessera::api_call([&] { return tessera::set_pool_size(n); });
}

int32_t tessera_get_num_threads(void) {
  int32_t size = 1;
  tessera::api_call([&]() -> tessera::Status {
    size = tessera::pool_size();
    return {};
  });
  return size;
}

int32_t tessera_num_variants(void) { return static_cast<int32_t>(tessera::isa_variants().size()); }

const char* tessera_variant_name(int32_t i) {
  const tessera::Variant* const v = variant_at(i);
  return v == nullptr ? nullptr : v->name;
}

int32_t tessera_variant_available(int32_t i) {
  const tessera::Variant* const v = variant_at(i);
  return v != nullptr && (tessera::cpu_features() & v->needs) == v->needs;
}
