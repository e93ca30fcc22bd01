// The frame around every function of the C ABI: no exception leaves it, and a failure leaves its message.
#ifndef TESSERA_API_CALL_H_
#define TESSERA_API_CALL_H_

#include "core/status.h"
#include "tessera/tessera.h"

namespace tessera {

// Runs call(arg). Keeps the message of a failure for tessera_last_error(), as "<operator>: <text of the status>", where
// the operator is the name of `function` without "tessera_". Writes the line of TESSERA_LOG.
tessera_status run_api_call(Status (*call)(const void* arg), const void* arg, const char* function) noexcept;

// The message of this thread's last failed call; "" before the first failure.
const char* last_error_message() noexcept;

// tessera_status tessera_op(...) { return api_call([&]() -> Status { ... }); }
// `function` becomes the name of the function that api_call() is called from.
template <class F>
tessera_status api_call(const F& f, const char* function = __builtin_FUNCTION()) noexcept {
  return run_api_call([](const void* arg) -> Status { return (*static_cast<const F*>(arg))(); }, &f, function);
}

}  // namespace tessera

#endif  // TESSERA_API_CALL_H_
