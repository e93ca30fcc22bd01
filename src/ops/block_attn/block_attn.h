#ifndef TESSERA_OPS_BLOCK_ATTN_BLOCK_ATTN_H_
#define TESSERA_OPS_BLOCK_ATTN_BLOCK_ATTN_H_

#include <string>

#include "core/status.h"
#include "ops/block_attn/problem.h"

namespace tessera::block_attn {

// The problem has passed check(), the context check_context().
Status run(const Problem& problem, const tessera_context& context);
Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes);
Status explain(const Problem& problem, const tessera_context& context, std::string* text);

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_BLOCK_ATTN_H_
