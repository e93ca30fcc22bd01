// The only validation of append_kv's arguments.
#ifndef TESSERA_OPS_APPEND_KV_CHECK_H_
#define TESSERA_OPS_APPEND_KV_CHECK_H_

#include "core/status.h"
#include "ops/append_kv/problem.h"
#include "tessera/tessera.h"

namespace tessera::append_kv {

Status check(const tessera_append_kv_args& args, Problem* problem);

}  // namespace tessera::append_kv

#endif  // TESSERA_OPS_APPEND_KV_CHECK_H_
