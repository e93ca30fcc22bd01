// Which keys each row sees, from whatever the caller says it with.
#ifndef TESSERA_OPS_QSA_SCORE_ROWS_H_
#define TESSERA_OPS_QSA_SCORE_ROWS_H_

#include <stdint.h>

#include "ops/qsa_score/problem.h"

namespace tessera::qsa_score {

// For Prepared: one entry for each row, which also lists the tiles; and room for what leads to them.
int64_t table_entries(const Problem& p);
void resolve(Row* table, Problem* p);

}  // namespace tessera::qsa_score

#endif  // TESSERA_OPS_QSA_SCORE_ROWS_H_
