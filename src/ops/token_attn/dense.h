// Rows whose list is the whole prefix up to their position, as those of the first 2,051 tokens are. Neighbours among them
// share their keys, so they are block attention's: it packs a key once for a tile of rows. Whether a row is dense depends
// on its list alone, so its bits do not depend on the rows beside it.
#ifndef TESSERA_OPS_TOKEN_ATTN_DENSE_H_
#define TESSERA_OPS_TOKEN_ATTN_DENSE_H_

#include <cstdint>

#include "ops/block_attn/problem.h"
#include "ops/token_attn/problem.h"

namespace tessera::token_attn {

// Whether row r is dense but does not follow the row before it as the next position of the same request does.
bool starts_run(const Problem& p, int64_t r);

// Tokens per block of the lists that are made for block attention, and the blocks of the longest.
inline constexpr int64_t kDenseBlock = 128;
int64_t dense_blocks(const Problem& p);

// Block attention of the dense rows; cuts[p.runs] and ids[dense_blocks(p)] are filled.
block_attn::Problem dense_problem(const Problem& p, block_attn::Cut* cuts, int32_t* ids);

}  // namespace tessera::token_attn

#endif  // TESSERA_OPS_TOKEN_ATTN_DENSE_H_
