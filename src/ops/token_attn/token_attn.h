#ifndef TESSERA_OPS_TOKEN_ATTN_TOKEN_ATTN_H_
#define TESSERA_OPS_TOKEN_ATTN_TOKEN_ATTN_H_

#include <cstddef>
#include <string>

#include "core/status.h"
#include "ops/token_attn/problem.h"

namespace tessera::token_attn {

// The context has passed check_context().
Status run(const Problem& problem, const tessera_context& context);
Status workspace_size(const Problem& problem, const tessera_context& context, size_t* bytes);
// What the plan is and why, one line for each choice.
Status explain(const Problem& problem, const tessera_context& context, std::string* text);

}  // namespace tessera::token_attn

#endif  // TESSERA_OPS_TOKEN_ATTN_TOKEN_ATTN_H_
