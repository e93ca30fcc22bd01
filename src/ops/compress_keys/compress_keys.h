// One key for each block of raw keys.
#ifndef TESSERA_OPS_COMPRESS_KEYS_COMPRESS_KEYS_H_
#define TESSERA_OPS_COMPRESS_KEYS_COMPRESS_KEYS_H_

#include "core/status.h"
#include "ops/compress_keys/problem.h"

namespace tessera::compress_keys {

// The tables of a call; `by_position`: also those that angles are made of, 40 ns each.
void fill(const Rule& rule, bool by_position, Tables* tables);

// How block i of request b turns; its first token is at `position` if `rotation` does not say.
void turn_block(const Rotation& rotation, int64_t b, int64_t i, int64_t position, Block* block);

// The problem has passed check(), the context check_context(). Needs no workspace.
Status run(const Problem& problem, const tessera_context& context);

}  // namespace tessera::compress_keys

#endif  // TESSERA_OPS_COMPRESS_KEYS_COMPRESS_KEYS_H_
