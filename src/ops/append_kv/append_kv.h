// Keys and values into the pages of a cache, row-major or in the packed layout.
#ifndef TESSERA_OPS_APPEND_KV_APPEND_KV_H_
#define TESSERA_OPS_APPEND_KV_APPEND_KV_H_

#include "core/status.h"
#include "ops/append_kv/problem.h"
#include "tessera/tessera.h"

namespace tessera::append_kv {

// The problem has passed check(), the context check_context(). Needs no workspace.
Status run(const Problem& problem, const tessera_context& context);

}  // namespace tessera::append_kv

#endif  // TESSERA_OPS_APPEND_KV_APPEND_KV_H_
