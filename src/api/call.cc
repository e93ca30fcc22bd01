#include "api/call.h"

#include <cstdio>
#include <cstring>
#include <new>

#include "cpu/float_environment.h"
#include "runtime/environment.h"
#include "runtime/trace.h"

namespace tessera {
namespace {

// A plain array: keeping a message must work when there is no memory left.
thread_local char last_error[1024];

const char* operator_name(const char* function) {
  constexpr char kPrefix[] = "tessera_";
  constexpr size_t kLength = sizeof(kPrefix) - 1;
  return std::strncmp(function, kPrefix, kLength) == 0 ? function + kLength : function;
}

tessera_status fail(const char* name, tessera_status code, const char* text) {
  std::snprintf(last_error, sizeof(last_error), "%s: %s", name, text);
  return code;
}

tessera_status guarded(Status (*call)(const void*), const void* arg, const char* name) noexcept {
  const FloatEnvironment standard;
  try {
    const Status s = call(arg);
    return s.ok() ? TESSERA_OK : fail(name, s.code, s.text.c_str());
  } catch (const StatusError& e) {
    return fail(name, e.status.code, e.what());
  } catch (const std::bad_alloc&) {
    return fail(name, TESSERA_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return fail(name, TESSERA_INTERNAL, e.what());
  } catch (...) {
    return fail(name, TESSERA_INTERNAL, "unknown exception");
  }
}

// Whether the environment asks for a log or a trace; not, if there is no memory to find out.
bool observed() noexcept {
  try {
    return environment().log_level > kLogNothing || trace_enabled();
  } catch (...) {
    return false;
  }
}

}  // namespace

tessera_status run_api_call(Status (*call)(const void* arg), const void* arg, const char* function) noexcept {
  const char* const name = operator_name(function);
  if (!observed()) return guarded(call, arg, name);

  const int64_t begin = now_ns();
  const tessera_status code = guarded(call, arg, name);
  const int64_t end = now_ns();
  const int level = environment().log_level;
  if (code != TESSERA_OK && level >= kLogFailures) {
    std::fprintf(stderr, "tessera: %s\n", last_error);
  } else if (code == TESSERA_OK && level >= kLogCalls) {
    std::fprintf(stderr, "tessera: %s: ok, %.3f ms\n", name, 1e-6 * static_cast<double>(end - begin));
  }
  trace_span(name, -1, begin, end);
  trace_flush();
  return code;
}

const char* last_error_message() noexcept { return last_error; }

}  // namespace tessera
