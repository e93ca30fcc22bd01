#include "ops/token_attn/token_attn.h"

#include "api/operator.h"
#include "ops/token_attn/check.h"
#include "reference/reference.h"

using namespace tessera;

using Args = tessera_qsa_sparse_attention_args;

tessera_status tessera_qsa_sparse_attention(const Args* args, const tessera_context* context) {
  return run_operator(args, context, token_attn::check, token_attn::run, reference_qsa_sparse_attention);
}
tessera_status tessera_qsa_sparse_attention_workspace_size(const Args* args, const tessera_context* context,
                                                           size_t* bytes) {
  return operator_workspace(args, context, bytes, token_attn::check, token_attn::workspace_size);
}
tessera_status tessera_qsa_sparse_attention_explain(const Args* args, const tessera_context* context, char* text,
                                                    size_t capacity) {
  return operator_explain(args, context, text, capacity, token_attn::check, token_attn::explain);
}
