// The only validation of append_keys' arguments.
#ifndef TESSERA_OPS_APPEND_KEYS_CHECK_H_
#define TESSERA_OPS_APPEND_KEYS_CHECK_H_

#include "core/status.h"
#include "ops/append_keys/problem.h"
#include "tessera/tessera.h"

namespace tessera::append_keys {

Status check(const tessera_qsa_append_keys_args& args, Problem* problem);

}  // namespace tessera::append_keys

#endif  // TESSERA_OPS_APPEND_KEYS_CHECK_H_
