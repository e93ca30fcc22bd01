// The only validation of tessera_context.
#ifndef TESSERA_RUNTIME_CONTEXT_H_
#define TESSERA_RUNTIME_CONTEXT_H_

#include "core/status.h"
#include "tessera/tessera.h"

namespace tessera {

// Copies *context (NULL: the defaults) to *checked if its executor, backend, variant name and workspace alignment are
// valid. Also refuses environment variables of this library that it cannot obey. Whether the CPU has the variant,
// and whether the workspace is large enough, is for the operator to say.
Status check_context(const tessera_context* context, tessera_context* checked);

}  // namespace tessera

#endif  // TESSERA_RUNTIME_CONTEXT_H_
