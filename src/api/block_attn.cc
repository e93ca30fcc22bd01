#include "ops/block_attn/block_attn.h"

#include <algorithm>
#include <cstring>

#include "api/call.h"
#include "ops/block_attn/check.h"
#include "reference/reference.h"
#include "runtime/context.h"

using namespace tessera;

namespace {

Status attend(const tessera_block_sparse_gqa_prefill_args* args, bool wants_state,
              const tessera_context* given_context) {
  if (args == nullptr) return invalid("args is null");
  tessera_context context;
  if (Status s = check_context(given_context, &context); !s.ok()) return s;
  if (context.backend == TESSERA_BACKEND_NATIVE) return block_attn::run(*args, wants_state, context);
  block_attn::Problem problem;
  if (Status s = block_attn::check(*args, wants_state, &problem); !s.ok()) return s;
  return reference_block_sparse_gqa_prefill(*args);
}

}  // namespace

tessera_status tessera_block_sparse_gqa_prefill(const tessera_block_sparse_gqa_prefill_args* args,
                                                const tessera_context* context) {
  return api_call([&] { return attend(args, false, context); });
}

tessera_status tessera_block_sparse_gqa_prefill_state(const tessera_block_sparse_gqa_prefill_args* args,
                                                      const tessera_context* context) {
  return api_call([&] { return attend(args, true, context); });
}

tessera_status tessera_block_sparse_gqa_prefill_workspace_size(const tessera_block_sparse_gqa_prefill_args* args,
                                                               const tessera_context* given_context, size_t* bytes) {
  return api_call([&]() -> Status {
    if (args == nullptr || bytes == nullptr) return invalid("args or bytes is null");
    tessera_context context;
    if (Status s = check_context(given_context, &context); !s.ok()) return s;
    return block_attn::workspace_size(*args, context, bytes);
  });
}

tessera_status tessera_block_sparse_gqa_prefill_explain(const tessera_block_sparse_gqa_prefill_args* args,
                                                        const tessera_context* given_context, char* text,
                                                        size_t capacity) {
  return api_call([&]() -> Status {
    if (args == nullptr || text == nullptr || capacity == 0) return invalid("args or text is null, or capacity is 0");
    tessera_context context;
    if (Status s = check_context(given_context, &context); !s.ok()) return s;
    std::string lines;
    if (Status s = block_attn::explain(*args, context, &lines); !s.ok()) return s;
    const size_t length = std::min(lines.size(), capacity - 1);
    std::memcpy(text, lines.data(), length);
    text[length] = '\0';
    return {};
  });
}
