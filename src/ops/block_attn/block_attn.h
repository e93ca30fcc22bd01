#ifndef TESSERA_OPS_BLOCK_ATTN_BLOCK_ATTN_H_
#define TESSERA_OPS_BLOCK_ATTN_BLOCK_ATTN_H_

#include <string>

#include "core/status.h"
#include "tessera/tessera.h"

namespace tessera::block_attn {

using Args = tessera_block_sparse_gqa_prefill_args;

// The context has passed check_context().
Status run(const Args& args, bool wants_state, const tessera_context& context);
Status workspace_size(const Args& args, const tessera_context& context, size_t* bytes);
Status explain(const Args& args, const tessera_context& context, std::string* text);

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_BLOCK_ATTN_H_
