#include "runtime/context.h"

#include <cstdint>
#include <string>

#include "cpu/features.h"
#include "runtime/environment.h"
#include "runtime/trace.h"
#include "runtime/workspace.h"

namespace tessera {
namespace {

Status check_environment() {
  if (!max_isa_status().ok()) return max_isa_status();
  if (!environment().status.ok()) return environment().status;
  return trace_status();
}

Status refuse(const char* field, int64_t value, const std::string& expected) {
  return invalid("context." + std::string(field) + " is " + std::to_string(value) + "; expected " + expected);
}

Status check_executor(const tessera_executor& e) {
  switch (e.kind) {
    case TESSERA_EXECUTOR_POOL: return {};
    case TESSERA_EXECUTOR_THREADS:
    case TESSERA_EXECUTOR_PARALLEL_FOR:
      if (e.num_threads < 1 || e.num_threads > kMaxThreads) {
        return refuse("executor.num_threads", e.num_threads, "1 to " + std::to_string(kMaxThreads));
      }
      if (e.kind == TESSERA_EXECUTOR_PARALLEL_FOR && e.parallel_for == nullptr) {
        return invalid("context.executor.parallel_for is NULL; expected a function");
      }
      return {};
    case TESSERA_EXECUTOR_PART:
      if (e.num_parts < 1) return refuse("executor.num_parts", e.num_parts, "at least 1");
      if (e.part < 0 || e.part >= e.num_parts) {
        return refuse("executor.part", e.part, "0 to num_parts - 1 = " + std::to_string(e.num_parts - 1));
      }
      return {};
  }
  return refuse("executor.kind", e.kind, "a tessera_executor_kind");
}

}  // namespace

Status check_context(const tessera_context* context, tessera_context* checked) {
  *checked = context == nullptr ? tessera_context{} : *context;
  if (Status s = check_environment(); !s.ok()) return s;
  if (Status s = check_executor(checked->executor); !s.ok()) return s;
  if (checked->backend != TESSERA_BACKEND_NATIVE && checked->backend != TESSERA_BACKEND_REFERENCE) {
    return refuse("backend", checked->backend, "a tessera_backend");
  }
  if (checked->variant != nullptr && find_variant(checked->variant) == nullptr) {
    return invalid("context.variant is \"" + std::string(checked->variant) + "\"; expected " + variant_names());
  }
  if (reinterpret_cast<uintptr_t>(checked->workspace) % kWorkspaceAlignment != 0) {
    return invalid("context.workspace is not at a multiple of 64 bytes");
  }
  return {};
}

}  // namespace tessera
