// Calls by several ranks. They stand above the operators: each does its rows, or its keys, by calling them.
#include "api/call.h"
#include "dist/attention.h"
#include "dist/partition.h"
#include "dist/ranks.h"
#include "runtime/context.h"

using namespace tessera;

namespace {

// What is wrong with the communicator is wrong on this rank alone, and cannot be told to the others.
template <class Use>
tessera_status parallel_call(const tessera_communicator* communicator, const tessera_context* given, const Use& use,
                             const char* function = __builtin_FUNCTION()) {
  return api_call(
      [&]() -> Status {
        if (Status s = dist::check_communicator(communicator); !s.ok()) return s;
        return use(dist::Ranks(*communicator), given);
      },
      function);
}

Status join_failed(const dist::Ranks& ranks, Status status) {
  dist::Word word;
  word.status = std::move(status);
  return dist::Agreement(ranks, word).wait();
}

// The arguments themselves, and what is peculiar to calls by several ranks.
template <class Args>
Status attend(const Args* args, const dist::Ranks& ranks, const tessera_context* given, const char* name) {
  tessera_context context;
  Status status = args == nullptr ? invalid("args is null") : check_context(given, &context);
  if (status.ok() && context.executor.kind == TESSERA_EXECUTOR_PART) {
    status = invalid("context.executor is a part of a call; expected all of it");
  }
  if (status.ok() && context.workspace != nullptr) {
    status = invalid("context.workspace is given; calls by several ranks use the library's own");
  }
  if (!status.ok()) return join_failed(ranks, std::move(status));
  const auto call = dist::call_of(*args);
  call->word.call = std::string(name) + ", " + ranks.way() + ": ";
  return dist::attend(call.get(), ranks, context);
}

}  // namespace

tessera_status tessera_block_sparse_gqa_prefill_parallel(const tessera_block_sparse_gqa_prefill_args* args,
                                                         const tessera_communicator* communicator,
                                                         const tessera_context* context) {
  return parallel_call(communicator, context, [&](const dist::Ranks& ranks, const tessera_context* given) {
    return attend(args, ranks, given, "block_sparse_gqa_prefill");
  });
}
tessera_status tessera_msa_sparse_attention_parallel(const tessera_msa_sparse_attention_args* args,
                                                     const tessera_communicator* communicator,
                                                     const tessera_context* context) {
  return parallel_call(communicator, context, [&](const dist::Ranks& ranks, const tessera_context* given) {
    return attend(args, ranks, given, "msa_sparse_attention");
  });
}
tessera_status tessera_qsa_sparse_attention_parallel(const tessera_qsa_sparse_attention_args* args,
                                                     const tessera_communicator* communicator,
                                                     const tessera_context* context) {
  return parallel_call(communicator, context, [&](const dist::Ranks& ranks, const tessera_context* given) {
    return attend(args, ranks, given, "qsa_sparse_attention");
  });
}

tessera_status tessera_parallel_failed(const tessera_communicator* communicator, tessera_status status,
                                       const char* message) {
  return parallel_call(communicator, nullptr, [&](const dist::Ranks& ranks, const tessera_context*) -> Status {
    if (status == TESSERA_OK || message == nullptr) return invalid("status is OK or message is null");
    return join_failed(ranks, {status, message});
  });
}

tessera_status tessera_own_pages(const tessera_own_pages_args* args, int64_t* pages) {
  return api_call([&] { return args == nullptr ? invalid("args is null") : dist::own_pages(*args, pages); });
}

tessera_status tessera_partition(const int64_t* work, int64_t items, int64_t parts, int64_t* bounds) {
  return api_call([&]() -> Status {
    if (items < 0 || parts < 1) return invalid("items is negative, or parts is not positive");
    if ((work == nullptr && items > 0) || bounds == nullptr) return invalid("work or bounds is null");
    dist::partition({work, static_cast<size_t>(items)}, {bounds, static_cast<size_t>(parts) + 1});
    return {};
  });
}
