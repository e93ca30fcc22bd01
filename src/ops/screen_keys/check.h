// The only validation of screen_keys' arguments.
#ifndef TESSERA_OPS_SCREEN_KEYS_CHECK_H_
#define TESSERA_OPS_SCREEN_KEYS_CHECK_H_

#include "core/status.h"
#include "ops/screen_keys/problem.h"

namespace tessera::screen_keys {

Status check(const tessera_qsa_screen_keys_args& args, Problem* problem);

}  // namespace tessera::screen_keys

#endif  // TESSERA_OPS_SCREEN_KEYS_CHECK_H_
