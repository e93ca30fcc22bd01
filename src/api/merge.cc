#include "api/call.h"
#include "ops/merge_states/check.h"
#include "ops/merge_states/merge_states.h"
#include "reference/reference.h"
#include "runtime/context.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace {

template <class Args>
Status merge(const Args* args, const tessera_context* given_context, Status (*reference)(const Args&)) {
  if (args == nullptr) return invalid("args is NULL");
  tessera_context context;
  if (Status s = check_context(given_context, &context); !s.ok()) return s;
  merge_states::Problem problem;
  if (Status s = merge_states::check(*args, &problem); !s.ok()) return s;
  if (context.backend == TESSERA_BACKEND_REFERENCE) return reference(*args);
  return merge_states::run(problem, context);
}

}  // namespace

tessera_status tessera_cp_merge(const tessera_cp_merge_args* args, const tessera_context* context) {
  return api_call([&] { return merge(args, context, reference_cp_merge); });
}

tessera_status tessera_merge_states(const tessera_merge_states_args* args, const tessera_context* context) {
  return api_call([&] { return merge(args, context, reference_merge_states); });
}
