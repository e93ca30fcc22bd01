// Copies of keys in 8 bits, by which selection passes over keys that need not be read.
#ifndef TESSERA_OPS_SCREEN_KEYS_SCREEN_KEYS_H_
#define TESSERA_OPS_SCREEN_KEYS_SCREEN_KEYS_H_

#include "core/status.h"
#include "ops/screen_keys/problem.h"

namespace tessera::screen_keys {

// The problem has passed check(), the context check_context(). Needs no workspace.
Status run(const Problem& problem, const tessera_context& context);

}  // namespace tessera::screen_keys

#endif  // TESSERA_OPS_SCREEN_KEYS_SCREEN_KEYS_H_
