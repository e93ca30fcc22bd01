#ifndef TESSERA_OPS_BLOCK_MASS_BLOCK_MASS_H_
#define TESSERA_OPS_BLOCK_MASS_BLOCK_MASS_H_

#include <cstddef>

#include "core/status.h"
#include "ops/block_mass/problem.h"

namespace tessera::block_mass {

// The context has passed check_context().
Status run(const Problem& problem, const tessera_context& context);
Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes);

}  // namespace tessera::block_mass

#endif  // TESSERA_OPS_BLOCK_MASS_BLOCK_MASS_H_
