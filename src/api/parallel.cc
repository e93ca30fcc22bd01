// Calls by several ranks. They stand above the operators: each does its rows, or its keys, by calling them.
#include "api/call.h"
#include "dist/attention.h"
#include "dist/partition.h"
#include "dist/ranks.h"
#include "dist/select.h"
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

// The arguments themselves, and what is peculiar to calls by several ranks; then use(context).
template <class Args, class Use>
Status checked(const Args* args, const dist::Ranks& ranks, const tessera_context* given, const Use& use) {
  tessera_context context;
  Status status = args == nullptr ? invalid("args is null") : check_context(given, &context);
  if (status.ok() && context.executor.kind == TESSERA_EXECUTOR_PART) {
    status = invalid("context.executor is a part of a call; expected all of it");
  }
  if (status.ok() && context.workspace != nullptr) {
    status = invalid("context.workspace is given; calls by several ranks use the library's own");
  }
  return status.ok() ? use(context) : join_failed(ranks, std::move(status));
}

std::string called(const char* name, const dist::Ranks& ranks) { return std::string(name) + ", " + ranks.way() + ": "; }

template <class Args>
Status attend(const Args* args, const dist::Ranks& ranks, const tessera_context* given, const char* name) {
  return checked(args, ranks, given, [&](const tessera_context& context) {
    const auto call = dist::call_of(*args);
    call->word.call = called(name, ranks);
    return dist::attend(call.get(), ranks, context);
  });
}

template <class Args>
Status select(const Args* args, const dist::Ranks& ranks, const tessera_context* given, const char* name) {
  return checked(args, ranks, given, [&](const tessera_context& context) {
    if (ranks.by_queries()) {
      return join_failed(
          ranks,
          not_implemented(
              "selection is shared by keys only, context-parallel; with all keys a rank selects for its own rows"));
    }
    const auto work = dist::selection(*args, context);
    work->word.call = called(name, ranks);
    return dist::share_keys(work.get(), ranks);
  });
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

tessera_status tessera_msa_select_parallel(const tessera_msa_select_args* args,
                                           const tessera_communicator* communicator, const tessera_context* context) {
  return parallel_call(communicator, context, [&](const dist::Ranks& ranks, const tessera_context* given) {
    return select(args, ranks, given, "msa_select");
  });
}
tessera_status tessera_qsa_select_parallel(const tessera_qsa_select_args* args,
                                           const tessera_communicator* communicator, const tessera_context* context) {
  return parallel_call(communicator, context, [&](const dist::Ranks& ranks, const tessera_context* given) {
    return select(args, ranks, given, "qsa_select");
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
