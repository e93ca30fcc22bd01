// What goes wrong on one rank goes wrong on all, with one message, and nobody waits for anybody.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "parallel.h"

namespace tessera::test {
namespace {

constexpr tessera_parallel kBoth[] = {TESSERA_QUERY_PARALLEL, TESSERA_CONTEXT_PARALLEL};

// Paged keys, striped over three ranks. Every rank may spoil its own arguments.
struct Job {
  Msa call = make_msa({.rows = {33, 2}, .keys = {129, 300}, .page = 16}, TESSERA_F32);
  std::vector<Shard> shards;
  std::vector<Output> outputs;

  Job() {
    for (int32_t rank = 0; rank < 3; ++rank) {
      shards.push_back(shard(call.table, call.used, call.k, call.v, 16, TESSERA_OWN_STRIPED, rank, 3));
      outputs.push_back(call.output());
    }
  }
  using Spoil = std::function<void(int32_t rank, MsaArgs*)>;

  std::vector<ThreadRanks::Result> run(tessera_parallel parallel, const Spoil& spoil) const {
    ThreadRanks ranks(3);
    const auto results = ranks.run(parallel, [&](const tessera_communicator& c) {
      const auto r = static_cast<size_t>(c.rank);
      MsaArgs a = call.args_into(outputs[r]);
      if (parallel == TESSERA_CONTEXT_PARALLEL) {
        a.k = shards[r].k;
        a.v = shards[r].v;
        a.sequences.page_table = shards[r].table;
      }
      spoil(c.rank, &a);
      return run_parallel(a, c);
    });
    EXPECT_EQ(ranks.unread(), 0u);
    return results;
  }

  void expect_all(tessera_status status, const std::string& message, const Spoil& spoil) const {
    for (tessera_parallel parallel : kBoth) {
      for (const auto& result : run(parallel, spoil)) {
        EXPECT_EQ(result.status, status);
        EXPECT_EQ(result.message, "msa_sparse_attention_parallel: " + message);
      }
    }
  }
};

TEST(ParallelFaults, ABadArgumentOfOneRankIsRefusedByAll) {
  Job().expect_all(TESSERA_TYPE_ERROR, "rank 1: q is int32; expected bfloat16 or float16 or float32",
                   [](int32_t rank, MsaArgs* a) {
                     if (rank == 1) a->q.dtype = TESSERA_I32;
                   });
}

TEST(ParallelFaults, TheLowestRankThatFailsIsNamed) {
  Job().expect_all(TESSERA_INVALID_ARGUMENT, "rank 1: block_size is -1; expected at least 1",
                   [](int32_t rank, MsaArgs* a) {
                     if (rank > 0) a->block_size = -rank;
                   });
}

TEST(ParallelFaults, CallsThatDifferAreRefused) {
  const Job job;
  const auto expect_refused = [&](const std::string& part, const Job::Spoil& spoil) {
    for (tessera_parallel parallel : kBoth) {
      for (const auto& result : job.run(parallel, spoil)) {
        EXPECT_EQ(result.status, TESSERA_INVALID_ARGUMENT);
        EXPECT_NE(result.message.find(part), std::string::npos) << result.message;
      }
    }
  };
  expect_refused("rank 2 is called with msa_sparse_attention", [](int32_t rank, MsaArgs* a) {
    if (rank == 2) a->block_size = 32;
  });
  expect_refused("q [35, 4, 16] float32, q2k_indices [2, 35, 3] int32", [](int32_t rank, MsaArgs* a) {
    if (rank == 1) a->q2k_indices.shape[2] = 3;
  });
  expect_refused("rank 1 has other lengths, positions or lists than rank 0", [&](int32_t rank, MsaArgs* a) {
    static const int32_t lengths[] = {129, 299};
    const int64_t size = 2;
    if (rank == 1) a->sequences.seqused_k = tessera_dense(lengths, TESSERA_I32, 1, &size);
  });
}

TEST(ParallelFaults, PagesOfNoRankOrOfTwoAreRefused) {
  const Job job;
  for (const double wrong : {-1.0, 0.0}) {
    std::vector<TestTensor> tables;
    for (const Shard& s : job.shards) tables.push_back(s.table.clone());
    for (int64_t i = 0; i < 2; ++i) tables[0].set(i, wrong);  // of the first two pages, the second is rank 1's
    const auto results = job.run(TESSERA_CONTEXT_PARALLEL, [&](int32_t rank, MsaArgs* a) {
      a->sequences.page_table = tables[static_cast<size_t>(rank)];
    });
    for (const auto& result : results) {
      EXPECT_NE(result.message.find("expected each page that holds keys in the table of exactly one rank"),
                std::string::npos)
          << result.message;
    }
  }
}

TEST(ParallelFaults, KeysThatAreNotInPagesAreRefused) {
  const Attention call = make_attention({}, TESSERA_F32);
  const Output to = call.output();
  ThreadRanks ranks(1);
  const auto results = ranks.run(TESSERA_CONTEXT_PARALLEL,
                                 [&](const tessera_communicator& c) { return run_parallel(call.args_into(to), c); });
  EXPECT_EQ(results[0].message,
            "block_sparse_gqa_prefill_parallel: page_table is missing; context-parallel calls take keys in pages");
}

// Found when the work is under way: after the first exchange, before the second.
TEST(ParallelFaults, AFailureInTheMiddleReachesAll) {
  // The best variant multiplies bf16 and nothing else, which is known when a kernel is chosen.
  if (takes(tessera_variant_name(0), TESSERA_F32)) GTEST_SKIP() << "every variant takes f32";
  const Job job;
  for (tessera_parallel parallel : kBoth) {
    ThreadRanks ranks(3);
    const auto results = ranks.run(parallel, [&](const tessera_communicator& c) {
      const auto r = static_cast<size_t>(c.rank);
      MsaArgs a = job.call.args_into(job.outputs[r]);
      if (parallel == TESSERA_CONTEXT_PARALLEL) {
        a.k = job.shards[r].k;
        a.v = job.shards[r].v;
        a.sequences.page_table = job.shards[r].table;
      }
      tessera_context context = {};
      context.variant =
          c.rank == 2 ? "avx512bf16" : "scalar";  // which does not take f32: known when a kernel is chosen
      return tessera_msa_sparse_attention_parallel(&a, &c, &context);
    });
    EXPECT_EQ(ranks.unread(), 0u);
    for (const auto& result : results) {
      EXPECT_EQ(result.status, TESSERA_NOT_IMPLEMENTED);
      EXPECT_EQ(result.message, results[0].message);
      EXPECT_NE(result.message.find("rank 2: "), std::string::npos);
    }
  }
}

TEST(ParallelFaults, ARankThatFailedBeforeItsCallTellsTheOthers) {
  const Job job;
  ThreadRanks ranks(3);
  const auto results = ranks.run(TESSERA_QUERY_PARALLEL, [&](const tessera_communicator& c) {
    if (c.rank == 0) return tessera_parallel_failed(&c, TESSERA_OUT_OF_MEMORY, "no memory for the queries");
    return run_parallel(job.call.args_into(job.outputs[static_cast<size_t>(c.rank)]), c);
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.status, TESSERA_OUT_OF_MEMORY);
    EXPECT_NE(result.message.find("rank 0: no memory for the queries"), std::string::npos);
  }
}

TEST(ParallelFaults, WhatTheEngineReportsIsReported) {
  const Attention call = make_attention({}, TESSERA_F32);
  const Output to = call.output();
  const Args a = call.args_into(to);
  tessera_communicator c = {};
  c.size = 2;
  c.wait = [](void*, void*) { return int32_t{0}; };
  c.exchange = [](void*, const void*, const tessera_rows*, void*, const tessera_rows*, int64_t, void**) {
    return int32_t{1};
  };
  EXPECT_EQ(run_parallel(a, c), TESSERA_INTERNAL);
  EXPECT_STREQ(tessera_last_error(), "block_sparse_gqa_prefill_parallel: the exchange between the ranks failed");
  c.size = 0;
  EXPECT_EQ(run_parallel(a, c), TESSERA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tessera::test
