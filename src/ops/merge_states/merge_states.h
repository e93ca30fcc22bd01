// Exact merge of attention states over disjoint sets of keys.
#ifndef TESSERA_OPS_MERGE_STATES_MERGE_STATES_H_
#define TESSERA_OPS_MERGE_STATES_MERGE_STATES_H_

#include "core/status.h"
#include "ops/merge_states/problem.h"

namespace tessera::merge_states {

// The problem has passed check(), the context check_context(). Needs no workspace.
Status run(const Problem& problem, const tessera_context& context);

}  // namespace tessera::merge_states

#endif  // TESSERA_OPS_MERGE_STATES_MERGE_STATES_H_
