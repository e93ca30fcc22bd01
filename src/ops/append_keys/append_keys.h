// Raw keys as they come, into a ring and, block by block, compressed into a cache.
#ifndef TESSERA_OPS_APPEND_KEYS_APPEND_KEYS_H_
#define TESSERA_OPS_APPEND_KEYS_APPEND_KEYS_H_

#include "core/status.h"
#include "ops/append_keys/problem.h"
#include "tessera/tessera.h"

namespace tessera::append_keys {

// The problem has passed check(), the context check_context(). Needs no workspace.
Status run(const Problem& problem, const tessera_context& context);

}  // namespace tessera::append_keys

#endif  // TESSERA_OPS_APPEND_KEYS_APPEND_KEYS_H_
