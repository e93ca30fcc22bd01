#include "api/operator.h"
#include "ops/merge_states/check.h"
#include "ops/merge_states/merge_states.h"
#include "reference/reference.h"

using namespace tessera;

tessera_status tessera_cp_merge(const tessera_cp_merge_args* args, const tessera_context* context) {
  return run_operator(args, context, merge_states::check, merge_states::run, reference_cp_merge);
}

tessera_status tessera_merge_states(const tessera_merge_states_args* args, const tessera_context* context) {
  return run_operator(args, context, merge_states::check, merge_states::run, reference_merge_states);
}
