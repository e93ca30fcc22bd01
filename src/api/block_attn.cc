#include "ops/block_attn/block_attn.h"

#include "api/operator.h"
#include "ops/block_attn/check.h"
#include "reference/reference.h"

using namespace tessera;

using Prefill = tessera_block_sparse_gqa_prefill_args;
using Msa = tessera_msa_sparse_attention_args;
using SingleQ = tessera_block_sparse_attention_single_q_args;

tessera_status tessera_block_sparse_gqa_prefill(const Prefill* args, const tessera_context* context) {
  return run_operator(args, context, block_attn::check, block_attn::run, reference_block_sparse_gqa_prefill);
}
tessera_status tessera_block_sparse_gqa_prefill_state(const Prefill* args, const tessera_context* context) {
  return run_operator(args, context, block_attn::check_state, block_attn::run, reference_block_sparse_gqa_prefill);
}
tessera_status tessera_block_sparse_gqa_prefill_workspace_size(const Prefill* args, const tessera_context* context,
                                                               size_t* bytes) {
  return operator_workspace(args, context, bytes, block_attn::check_either, block_attn::workspace_size);
}
tessera_status tessera_block_sparse_gqa_prefill_explain(const Prefill* args, const tessera_context* context, char* text,
                                                        size_t capacity) {
  return operator_explain(args, context, text, capacity, block_attn::check_either, block_attn::explain);
}

tessera_status tessera_msa_sparse_attention(const Msa* args, const tessera_context* context) {
  return run_operator(args, context, block_attn::check, block_attn::run, reference_msa_sparse_attention);
}
tessera_status tessera_msa_sparse_attention_workspace_size(const Msa* args, const tessera_context* context,
                                                           size_t* bytes) {
  return operator_workspace(args, context, bytes, block_attn::check, block_attn::workspace_size);
}
tessera_status tessera_msa_sparse_attention_explain(const Msa* args, const tessera_context* context, char* text,
                                                    size_t capacity) {
  return operator_explain(args, context, text, capacity, block_attn::check, block_attn::explain);
}

tessera_status tessera_block_sparse_attention_single_q(const SingleQ* args, const tessera_context* context) {
  return run_operator(args, context, block_attn::check, block_attn::run, reference_block_sparse_attention_single_q);
}
tessera_status tessera_block_sparse_attention_single_q_workspace_size(const SingleQ* args,
                                                                      const tessera_context* context, size_t* bytes) {
  return operator_workspace(args, context, bytes, block_attn::check, block_attn::workspace_size);
}
tessera_status tessera_block_sparse_attention_single_q_explain(const SingleQ* args, const tessera_context* context,
                                                               char* text, size_t capacity) {
  return operator_explain(args, context, text, capacity, block_attn::check, block_attn::explain);
}
