#include "ops/block_attn/block_attn.h"

#include <algorithm>
#include <cstring>

#include "api/call.h"
#include "ops/block_attn/check.h"
#include "reference/reference.h"
#include "runtime/context.h"

using namespace tessera;

namespace {

using Prefill = tessera_block_sparse_gqa_prefill_args;
using Msa = tessera_msa_sparse_attention_args;
using SingleQ = tessera_block_sparse_attention_single_q_args;

Status checked_form(const Prefill& a, bool wants_state, block_attn::Problem* p) {
  return block_attn::check(a, wants_state, p);
}
Status checked_form(const Msa& a, bool, block_attn::Problem* p) { return block_attn::check(a, p); }
Status checked_form(const SingleQ& a, bool, block_attn::Problem* p) { return block_attn::check(a, p); }

Status reference_of(const Prefill& a) { return reference_block_sparse_gqa_prefill(a); }
Status reference_of(const Msa& a) { return reference_msa_sparse_attention(a); }
Status reference_of(const SingleQ& a) { return reference_block_sparse_attention_single_q(a); }

// Calls use(problem, context) with the checked call.
template <class Args, class Use>
Status checked(const Args* args, bool wants_state, const tessera_context* given_context, const Use& use) {
  if (args == nullptr) return invalid("args is null");
  tessera_context context;
  if (Status s = check_context(given_context, &context); !s.ok()) return s;
  block_attn::Problem problem;
  if (Status s = checked_form(*args, wants_state, &problem); !s.ok()) return s;
  return use(problem, context);
}

template <class Args>
tessera_status attend(const Args* args, bool wants_state, const tessera_context* given_context,
                      const char* function = __builtin_FUNCTION()) {
  const auto run = [&](const block_attn::Problem& p, const tessera_context& context) {
    return context.backend == TESSERA_BACKEND_NATIVE ? block_attn::run(p, context) : reference_of(*args);
  };
  return api_call([&] { return checked(args, wants_state, given_context, run); }, function);
}

template <class Args>
tessera_status workspace_size(const Args* args, bool wants_state, const tessera_context* given_context, size_t* bytes,
                              const char* function = __builtin_FUNCTION()) {
  const auto size = [&](const block_attn::Problem& p, const tessera_context& context) {
    return block_attn::workspace_size(p, context, bytes);
  };
  return api_call(
      [&] { return bytes == nullptr ? invalid("bytes is null") : checked(args, wants_state, given_context, size); },
      function);
}

template <class Args>
tessera_status explain(const Args* args, bool wants_state, const tessera_context* given_context, char* text,
                       size_t capacity, const char* function = __builtin_FUNCTION()) {
  const auto say = [&](const block_attn::Problem& p, const tessera_context& context) {
    std::string lines;
    Status status = block_attn::explain(p, context, &lines);
    if (!status.ok()) return status;
    const size_t length = std::min(lines.size(), capacity - 1);
    std::memcpy(text, lines.data(), length);
    text[length] = '\0';
    return status;
  };
  return api_call(
      [&] {
        if (text == nullptr || capacity == 0) return invalid("text is null or capacity is 0");
        return checked(args, wants_state, given_context, say);
      },
      function);
}

bool is_state_form(const Prefill* args) { return args != nullptr && args->state_o.ndim != 0; }

}  // namespace

tessera_status tessera_block_sparse_gqa_prefill(const Prefill* args, const tessera_context* context) {
  return attend(args, false, context);
}
tessera_status tessera_block_sparse_gqa_prefill_state(const Prefill* args, const tessera_context* context) {
  return attend(args, true, context);
}
tessera_status tessera_block_sparse_gqa_prefill_workspace_size(const Prefill* args, const tessera_context* context,
                                                               size_t* bytes) {
  return workspace_size(args, is_state_form(args), context, bytes);
}
tessera_status tessera_block_sparse_gqa_prefill_explain(const Prefill* args, const tessera_context* context, char* text,
                                                        size_t capacity) {
  return explain(args, is_state_form(args), context, text, capacity);
}

tessera_status tessera_msa_sparse_attention(const Msa* args, const tessera_context* context) {
  return attend(args, false, context);
}
tessera_status tessera_msa_sparse_attention_workspace_size(const Msa* args, const tessera_context* context,
                                                           size_t* bytes) {
  return workspace_size(args, false, context, bytes);
}
tessera_status tessera_msa_sparse_attention_explain(const Msa* args, const tessera_context* context, char* text,
                                                    size_t capacity) {
  return explain(args, false, context, text, capacity);
}

tessera_status tessera_block_sparse_attention_single_q(const SingleQ* args, const tessera_context* context) {
  return attend(args, false, context);
}
