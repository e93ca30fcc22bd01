#include "api/operator.h"
#include "ops/block_max/block_max.h"
#include "ops/block_max/check.h"
#include "reference/reference.h"

using namespace tessera;

tessera_status tessera_msa_block_scores(const tessera_msa_block_scores_args* args, const tessera_context* context) {
  return run_operator(args, context, block_max::check, block_max::run, reference_msa_block_scores);
}
tessera_status tessera_msa_block_scores_workspace_size(const tessera_msa_block_scores_args* args,
                                                       const tessera_context* context, size_t* bytes) {
  return operator_workspace(args, context, bytes, block_max::check, block_max::workspace_size);
}

tessera_status tessera_msa_select(const tessera_msa_select_args* args, const tessera_context* context) {
  return run_operator(args, context, block_max::check, block_max::run, reference_msa_select);
}
tessera_status tessera_msa_select_workspace_size(const tessera_msa_select_args* args, const tessera_context* context,
                                                 size_t* bytes) {
  return operator_workspace(args, context, bytes, block_max::check, block_max::workspace_size);
}
