// Which keys the rows' requests have, and how many of their lists' ids count.
#ifndef TESSERA_OPS_TOKEN_ATTN_ROWS_H_
#define TESSERA_OPS_TOKEN_ATTN_ROWS_H_

#include <stdint.h>

#include "ops/token_attn/problem.h"

namespace tessera::token_attn {

// For Prepared: one entry for each row, and room for what leads to them.
int64_t table_entries(const Problem& p);
void resolve(Row* table, Problem* p);

}  // namespace tessera::token_attn

#endif  // TESSERA_OPS_TOKEN_ATTN_ROWS_H_
