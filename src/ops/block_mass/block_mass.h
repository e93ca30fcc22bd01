#ifndef TESSERA_OPS_BLOCK_MASS_BLOCK_MASS_H_
#define TESSERA_OPS_BLOCK_MASS_BLOCK_MASS_H_

#include "core/status.h"
#include "tessera/tessera.h"

namespace tessera::block_mass {

// The context has passed check_context().
Status run(const tessera_mass_select_args& args, const tessera_context& context);

}  // namespace tessera::block_mass

#endif  // TESSERA_OPS_BLOCK_MASS_BLOCK_MASS_H_
