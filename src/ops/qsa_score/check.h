#ifndef TESSERA_OPS_QSA_SCORE_CHECK_H_
#define TESSERA_OPS_QSA_SCORE_CHECK_H_

#include "core/status.h"
#include "ops/qsa_score/problem.h"

namespace tessera::qsa_score {

// The only validation of QSA's scores and selection.
Status check(const tessera_qsa_indexer_mqa_score_args& args, Problem* problem);
Status check(const tessera_qsa_mqa_prefill_args& args, Problem* problem);
Status check(const tessera_qsa_mqa_decode_args& args, Problem* problem);
Status check(const tessera_qsa_select_args& args, Problem* problem);

}  // namespace tessera::qsa_score

#endif  // TESSERA_OPS_QSA_SCORE_CHECK_H_
