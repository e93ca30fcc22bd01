// The C functions of an operator that checks its arguments into a Problem: check both, then run one of the two backends,
// or tell the size of the workspace.
#ifndef TESSERA_API_OPERATOR_H_
#define TESSERA_API_OPERATOR_H_

#include "api/call.h"
#include "core/status.h"
#include "runtime/context.h"
#include "tessera/tessera.h"

namespace tessera {

template <class Args, class Problem>
using Check = Status (*)(const Args&, Problem*);

// Calls use(problem, context) with what has passed the checks.
template <class Args, class Problem, class Use>
tessera_status checked_call(const Args* args, const tessera_context* given_context, Check<Args, Problem> check,
                            const Use& use, const char* function) {
  return api_call(
      [&]() -> Status {
        if (args == nullptr) return invalid("args is null");
        tessera_context context;
        if (Status s = check_context(given_context, &context); !s.ok()) return s;
        Problem problem;
        if (Status s = check(*args, &problem); !s.ok()) return s;
        return use(problem, context);
      },
      function);
}

template <class Args, class Problem>
tessera_status run_operator(const Args* args, const tessera_context* given_context, Check<Args, Problem> check,
                            Status (*run)(const Problem&, const tessera_context&), Status (*reference)(const Args&),
                            const char* function = __builtin_FUNCTION()) {
  const auto use = [&](const Problem& problem, const tessera_context& context) {
    return context.backend == TESSERA_BACKEND_NATIVE ? run(problem, context) : reference(*args);
  };
  return checked_call(args, given_context, check, use, function);
}

template <class Args, class Problem>
tessera_status operator_workspace(const Args* args, const tessera_context* given_context, size_t* bytes,
                                  Check<Args, Problem> check,
                                  Status (*size)(const Problem&, const tessera_context&, size_t*),
                                  const char* function = __builtin_FUNCTION()) {
  const auto use = [&](const Problem& problem, const tessera_context& context) {
    return bytes == nullptr ? invalid("bytes is null") : size(problem, context, bytes);
  };
  return checked_call(args, given_context, check, use, function);
}

}  // namespace tessera

#endif  // TESSERA_API_OPERATOR_H_
