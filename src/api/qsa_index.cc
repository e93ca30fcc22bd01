#include "api/operator.h"
#include "ops/qsa_score/check.h"
#include "ops/qsa_score/qsa_score.h"
#include "ops/topk_blocks/check.h"
#include "ops/topk_blocks/topk_blocks.h"
#include "reference/reference.h"

using namespace tessera;

tessera_status tessera_qsa_indexer_mqa_score(const tessera_qsa_indexer_mqa_score_args* args,
                                             const tessera_context* context) {
  return run_operator(args, context, qsa_score::check, qsa_score::run, reference_qsa_indexer_mqa_score);
}
tessera_status tessera_qsa_indexer_mqa_score_workspace_size(const tessera_qsa_indexer_mqa_score_args* args,
                                                            const tessera_context* context, size_t* bytes) {
  return operator_workspace(args, context, bytes, qsa_score::check, qsa_score::workspace_size);
}

tessera_status tessera_qsa_mqa_prefill(const tessera_qsa_mqa_prefill_args* args, const tessera_context* context) {
  return run_operator(args, context, qsa_score::check, qsa_score::run, reference_qsa_mqa_prefill);
}
tessera_status tessera_qsa_mqa_prefill_workspace_size(const tessera_qsa_mqa_prefill_args* args,
                                                      const tessera_context* context, size_t* bytes) {
  return operator_workspace(args, context, bytes, qsa_score::check, qsa_score::workspace_size);
}

tessera_status tessera_qsa_mqa_decode(const tessera_qsa_mqa_decode_args* args, const tessera_context* context) {
  return run_operator(args, context, qsa_score::check, qsa_score::run, reference_qsa_mqa_decode);
}
tessera_status tessera_qsa_mqa_decode_workspace_size(const tessera_qsa_mqa_decode_args* args,
                                                     const tessera_context* context, size_t* bytes) {
  return operator_workspace(args, context, bytes, qsa_score::check, qsa_score::workspace_size);
}

tessera_status tessera_qsa_select(const tessera_qsa_select_args* args, const tessera_context* context) {
  return run_operator(args, context, qsa_score::check, qsa_score::run, reference_qsa_select);
}
tessera_status tessera_qsa_select_workspace_size(const tessera_qsa_select_args* args, const tessera_context* context,
                                                 size_t* bytes) {
  return operator_workspace(args, context, bytes, qsa_score::check, qsa_score::workspace_size);
}

tessera_status tessera_topk_blocks(const tessera_topk_blocks_args* args, const tessera_context* context) {
  return run_operator(args, context, topk_blocks::check, topk_blocks::run, reference_topk_blocks);
}
tessera_status tessera_topk_blocks_workspace_size(const tessera_topk_blocks_args* args, const tessera_context* context,
                                                  size_t* bytes) {
  return operator_workspace(args, context, bytes, topk_blocks::check, topk_blocks::workspace_size);
}
