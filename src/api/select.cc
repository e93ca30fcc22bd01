#include "api/call.h"
#include "ops/block_mass/block_mass.h"
#include "ops/block_mass/check.h"
#include "ops/block_pool/block_pool.h"
#include "ops/block_pool/check.h"
#include "reference/reference.h"
#include "runtime/context.h"

using namespace tessera;

tessera_status tessera_moba_select(const tessera_moba_select_args* args, const tessera_context* given_context) {
  return api_call([&]() -> Status {
    if (args == nullptr) return invalid("args is null");
    tessera_context context;
    if (Status s = check_context(given_context, &context); !s.ok()) return s;
    if (context.backend == TESSERA_BACKEND_NATIVE) return block_pool::run(*args, context);
    block_pool::Problem problem;
    if (Status s = block_pool::check(*args, &problem); !s.ok()) return s;
    return reference_moba_select(*args);
  });
}

tessera_status tessera_mass_select(const tessera_mass_select_args* args, const tessera_context* given_context) {
  return api_call([&]() -> Status {
    if (args == nullptr) return invalid("args is null");
    tessera_context context;
    if (Status s = check_context(given_context, &context); !s.ok()) return s;
    if (context.backend == TESSERA_BACKEND_NATIVE) return block_mass::run(*args, context);
    block_mass::Problem problem;
    if (Status s = block_mass::check(*args, &problem); !s.ok()) return s;
    return reference_mass_select(*args);
  });
}
