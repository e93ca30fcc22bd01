#include "api/operator.h"
#include "ops/block_mass/block_mass.h"
#include "ops/block_mass/check.h"
#include "ops/block_pool/block_pool.h"
#include "ops/block_pool/check.h"
#include "reference/reference.h"

using namespace tessera;

tessera_status tessera_moba_select(const tessera_moba_select_args* args, const tessera_context* context) {
  return run_operator(args, context, block_pool::check, block_pool::run, reference_moba_select);
}
tessera_status tessera_moba_select_workspace_size(const tessera_moba_select_args* args, const tessera_context* context,
                                                  size_t* bytes) {
  return operator_workspace(args, context, bytes, block_pool::check, block_pool::workspace_size);
}

tessera_status tessera_mass_select(const tessera_mass_select_args* args, const tessera_context* context) {
  return run_operator(args, context, block_mass::check, block_mass::run, reference_mass_select);
}
tessera_status tessera_mass_select_workspace_size(const tessera_mass_select_args* args, const tessera_context* context,
                                                  size_t* bytes) {
  return operator_workspace(args, context, bytes, block_mass::check, block_mass::workspace_size);
}
