// The C functions of an operator that checks its arguments into a Problem: check both, then run one of the two backends,
// tell the size of the workspace, or explain the plan.
#ifndef TESSERA_API_OPERATOR_H_
#define TESSERA_API_OPERATOR_H_

#include <string>

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
  const auto use = [&](const Problem& problem, const tessera_context& context) -> Status {
    if (context.backend == TESSERA_BACKEND_NATIVE) return run(problem, context);
    const bool other_part = context.executor.kind == TESSERA_EXECUTOR_PART && context.executor.part != 0;
    return other_part ? Status{} : reference(*args);
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

template <class Args, class Problem>
tessera_status operator_explain(const Args* args, const tessera_context* given_context, char* text, size_t capacity,
                                Check<Args, Problem> check,
                                Status (*explain)(const Problem&, const tessera_context&, std::string*),
                                const char* function = __builtin_FUNCTION()) {
  const auto use = [&](const Problem& problem, const tessera_context& context) -> Status {
    if (text == nullptr || capacity == 0) return invalid("text is null or capacity is 0");
    std::string lines;
    if (Status s = explain(problem, context, &lines); !s.ok()) return s;
    text[lines.copy(text, capacity - 1)] = '\0';
    return {};
  };
  return checked_call(args, given_context, check, use, function);
}

}  // namespace tessera

#endif  // TESSERA_API_OPERATOR_H_
