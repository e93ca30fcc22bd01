#include "ops/ceiling/ceiling.h"

#include "api/call.h"
#include "runtime/context.h"

tessera_status tessera_measure_ceiling(tessera_ceiling_kind kind, const char* variant, int32_t num_threads,
                                       double seconds, double* value) {
  return tessera::api_call([&]() -> tessera::Status {
    tessera_context context;  // for the environment's errors
    if (tessera::Status s = tessera::check_context(nullptr, &context); !s.ok()) return s;
    return tessera::ceiling::measure(kind, variant, num_threads, seconds, value);
  });
}

tessera_status tessera_measure_gather(const void* const* pieces, int64_t count, int64_t bytes, const char* variant,
                                      int32_t num_threads, double seconds, double* value) {
  return tessera::api_call([&]() -> tessera::Status {
    tessera_context context;  // for the environment's errors
    if (tessera::Status s = tessera::check_context(nullptr, &context); !s.ok()) return s;
    return tessera::ceiling::measure_gather(pieces, count, bytes, variant, num_threads, seconds, value);
  });
}
