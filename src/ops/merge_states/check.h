// The only validation of the merges' arguments.
#ifndef TESSERA_OPS_MERGE_STATES_CHECK_H_
#define TESSERA_OPS_MERGE_STATES_CHECK_H_

#include "core/status.h"
#include "ops/merge_states/problem.h"

namespace tessera::merge_states {

Status check(const tessera_cp_merge_args& args, Problem* problem);
Status check(const tessera_merge_states_args& args, Problem* problem);

}  // namespace tessera::merge_states

#endif  // TESSERA_OPS_MERGE_STATES_CHECK_H_
