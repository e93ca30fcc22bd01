#ifndef TESSERA_OPS_BLOCK_MASS_CHECK_H_
#define TESSERA_OPS_BLOCK_MASS_CHECK_H_

#include "core/status.h"
#include "ops/block_mass/problem.h"

namespace tessera::block_mass {

// The only validation of mass selection.
Status check(const tessera_mass_select_args& args, Problem* problem);

}  // namespace tessera::block_mass

#endif  // TESSERA_OPS_BLOCK_MASS_CHECK_H_
