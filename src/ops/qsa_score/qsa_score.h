#ifndef TESSERA_OPS_QSA_SCORE_QSA_SCORE_H_
#define TESSERA_OPS_QSA_SCORE_QSA_SCORE_H_

#include <cstddef>

#include "core/status.h"
#include "ops/qsa_score/problem.h"

namespace tessera::qsa_score {

// The context has passed check_context().
Status run(const Problem& problem, const tessera_context& context);
Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes);

}  // namespace tessera::qsa_score

#endif  // TESSERA_OPS_QSA_SCORE_QSA_SCORE_H_
