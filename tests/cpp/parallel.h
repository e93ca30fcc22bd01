// Calls by several ranks against the same call by one.
#ifndef TESSERA_TESTS_PARALLEL_H_
#define TESSERA_TESTS_PARALLEL_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention.h"
#include "msa_attention.h"
#include "paged.h"
#include "qsa_attention.h"
#include "ranks.h"
#include "tessera/parallel.h"

namespace tessera::test {

inline constexpr int32_t kSizes[] = {1, 2, 3, 4, 8};

// A thread for each rank is enough.
inline tessera_context one_thread() {
  tessera_context context = {};
  context.executor.kind = TESSERA_EXECUTOR_THREADS;
  context.executor.num_threads = 1;
  return context;
}

inline tessera_status run_parallel(const Args& a, const tessera_communicator& c) {
  const tessera_context context = one_thread();
  return tessera_block_sparse_gqa_prefill_parallel(&a, &c, &context);
}
inline tessera_status run_parallel(const MsaArgs& a, const tessera_communicator& c) {
  const tessera_context context = one_thread();
  return tessera_msa_sparse_attention_parallel(&a, &c, &context);
}
inline tessera_status run_parallel(const TokenArgs& a, const tessera_communicator& c) {
  const tessera_context context = one_thread();
  return tessera_qsa_sparse_attention_parallel(&a, &c, &context);
}

// One result per rank, of the arguments that args_of(rank, output) gives it.
template <class Call, class ArgsOf>
std::vector<Output> on_ranks(const Call& call, int32_t size, tessera_parallel parallel, const ArgsOf& args_of,
                             int64_t exchange_bytes = 0) {
  std::vector<Output> outputs;
  for (int32_t rank = 0; rank < size; ++rank) outputs.push_back(call.output());
  ThreadRanks ranks(size);
  const auto results = ranks.run(
      parallel,
      [&](const tessera_communicator& c) {
        return run_parallel(args_of(c.rank, outputs[static_cast<size_t>(c.rank)]), c);
      },
      exchange_bytes);
  for (const auto& result : results) EXPECT_EQ(result.status, TESSERA_OK) << result.message;
  EXPECT_EQ(ranks.unread(), 0u);
  for (const Output& to : outputs) {
    expect_clean(to.out, "out");
    if (call.with_lse) expect_clean(to.lse, "lse");
  }
  return outputs;
}

template <class Call>
void expect_same_bits_by_queries(const Call& call) {
  const Output want = call.run();
  for (int32_t size : kSizes) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    const auto args_of = [&](int32_t, const Output& to) { return call.args_into(to); };
    for (const Output& got : on_ranks(call, size, TESSERA_QUERY_PARALLEL, args_of)) EXPECT_TRUE(got == want);
  }
}

// ---- A cache that is shared out ----

// What one rank has of pages [P, ...]: its table, and its own pages alone.
struct Shard {
  TestTensor table, k, v;
};

inline TestTensor own_part(const TestTensor& pages, const TestTensor& whole, const TestTensor& table, int64_t count) {
  const tessera_tensor& t = pages;
  Shape shape(t.shape, t.shape + t.ndim);
  shape[0] = count;
  TestTensor part(t.dtype, shape);
  const int64_t page = pages.elements() / t.shape[0];
  for (int64_t i = 0; i < table.elements(); ++i) {
    const auto to = static_cast<int64_t>(table.get(i)), from = static_cast<int64_t>(whole.get(i));
    for (int64_t j = 0; to >= 0 && j < page; ++j) part.set(to * page + j, pages.get(from * page + j));
  }
  return part;
}

inline Shard shard(const TestTensor& whole, const TestTensor& lengths, const TestTensor& k, const TestTensor& v,
                   int64_t page_size, tessera_ownership ownership, int32_t rank, int32_t size) {
  const tessera_tensor& t = whole;
  Shard s;
  s.table = TestTensor(TESSERA_I32, {t.shape[0], t.shape[1]});
  tessera_own_pages_args args = {ownership, rank, size, page_size, lengths, {}, s.table};
  TestTensor owners(TESSERA_I32, {t.shape[0], t.shape[1]});
  for (int64_t i = 0; i < owners.elements(); ++i) owners.set(i, static_cast<double>((i * 7 + 3) % 5 % size));
  if (ownership == TESSERA_OWN_BY_PAGE) args.owners = owners;
  int64_t pages = 0;
  EXPECT_EQ(tessera_own_pages(&args, &pages), TESSERA_OK) << tessera_last_error();
  s.k = own_part(k, whole, s.table, pages);
  s.v = own_part(v, whole, s.table, pages);
  return s;
}

inline constexpr tessera_ownership kOwnerships[] = {TESSERA_OWN_CONTIGUOUS, TESSERA_OWN_STRIPED, TESSERA_OWN_BY_PAGE};

// `sharded(shard, output)`: the arguments of a rank. Runs twice: the same bits. All ranks have the same.
template <class Call, class ShardOf, class Sharded, class Check>
void expect_right_by_context(const Call& call, const ShardOf& shard_of, const Sharded& sharded, const Check& check) {
  for (int32_t size : kSizes) {
    for (tessera_ownership ownership : kOwnerships) {
      SCOPED_TRACE(std::to_string(size) + " ranks, ownership " + std::to_string(ownership));
      std::vector<Shard> shards;
      for (int32_t rank = 0; rank < size; ++rank) shards.push_back(shard_of(ownership, rank, size));
      const auto args_of = [&](int32_t rank, const Output& to) {
        return sharded(shards[static_cast<size_t>(rank)], to);
      };
      const auto first = on_ranks(call, size, TESSERA_CONTEXT_PARALLEL, args_of);
      const auto again = on_ranks(call, size, TESSERA_CONTEXT_PARALLEL, args_of);
      const auto in_pieces = on_ranks(call, size, TESSERA_CONTEXT_PARALLEL, args_of, 4000);
      check(first[0]);
      for (int32_t rank = 0; rank < size; ++rank) {
        const auto r = static_cast<size_t>(rank);
        EXPECT_TRUE(first[r] == first[0]);
        EXPECT_TRUE(again[r] == first[0]);
        EXPECT_TRUE(in_pieces[r] == first[0]);
      }
    }
  }
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_PARALLEL_H_
