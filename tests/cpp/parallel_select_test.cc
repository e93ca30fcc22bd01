// Selection by ranks that have some of the keys each: the ids of one rank that has all.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "msa_index.h"
#include "parallel.h"
#include "qsa_index.h"

namespace tessera::test {
namespace {

// run(rank's table and pages, output) on every rank, for every number of ranks and way to own pages; all results are `want`.
template <class Result, class Run>
void expect_ids(const TestTensor& table, const TestTensor& lengths, const TestTensor& pages, int64_t page_size,
                const TestTensor& want, const Result& result, const Run& run) {
  for (int32_t size : kSizes) {
    for (tessera_ownership ownership : kOwnerships) {
      SCOPED_TRACE(std::to_string(size) + " ranks, ownership " + std::to_string(ownership));
      std::vector<Shard> shards;
      std::vector<TestTensor> outputs;
      for (int32_t rank = 0; rank < size; ++rank) {
        shards.push_back(shard(table, lengths, pages, pages, page_size, ownership, rank, size));
        outputs.push_back(result());
      }
      for (int64_t exchange_bytes : {0, 500}) {
        ThreadRanks ranks(size);
        const auto results = ranks.run(
            TESSERA_CONTEXT_PARALLEL,
            [&](const tessera_communicator& c) {
              const auto r = static_cast<size_t>(c.rank);
              return run(shards[r], outputs[r], c);
            },
            exchange_bytes);
        for (const auto& one : results) EXPECT_EQ(one.status, TESSERA_OK) << one.message;
        for (TestTensor& got : outputs) {
          expect_clean(got, "indices");
          EXPECT_EQ(got.all_bits(), want.all_bits());
          got.clear();
        }
      }
    }
  }
}

TEST(ParallelSelect, BlocksOfKeys) {
  const IndexCase cases[] = {
      {.requests = 2, .keys_form = Form::kPaged, .keys_of = {150, 70}, .local = 2, .init = 1},
      {.requests = 3,
       .packed_q = true,
       .keys_form = Form::kPaged,
       .page_size = 32,
       .rows_of = {5, 0, 40},
       .keys_of = {150, 3, 90},
       .layout = cases::Layout::kStrided},
      {.queries = 1, .keys = 900, .reduce = true, .keys_form = Form::kPaged, .topk = 9},
      {.queries = 30, .keys_form = Form::kPaged, .offset = cases::Offset::kPerRequest, .topk = 20, .local = 0}};
  for (const IndexCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    const Index call(c, TESSERA_BF16);
    expect_ids(
        call.page_table, call.seqused_k, call.paged.k, c.page_size, call.select(),
        [&] { return call.indices_tensor(); },
        [&](const Shard& own, const tessera_tensor& to, const tessera_communicator& ranks) {
          tessera_msa_select_args a = call.select_args(to);
          a.index.k = own.k;
          a.index.sequences.page_table = own.table;
          const tessera_context context = one_thread();
          return tessera_msa_select_parallel(&a, &ranks, &context);
        });
  }
}

// Scores that tie, or are no numbers.
TEST(ParallelSelect, TiesAndNaN) {
  Index call({.queries = 20, .keys = 160, .heads = 2, .keys_form = Form::kPaged, .topk = 4}, TESSERA_F32);
  call.paged.k.fill(1);
  for (int64_t d = 0; d < 16; ++d) call.paged.k.set(call.paged.at(0, 0, 35) + d, std::nan(""));
  call.k = call.paged.k;
  expect_ids(
      call.page_table, call.seqused_k, call.paged.k, 16, call.select(), [&] { return call.indices_tensor(); },
      [&](const Shard& own, const tessera_tensor& to, const tessera_communicator& ranks) {
        tessera_msa_select_args a = call.select_args(to);
        a.index.k = own.k;
        a.index.sequences.page_table = own.table;
        return tessera_msa_select_parallel(&a, &ranks, nullptr);
      });
}

TEST(ParallelSelect, CompressedKeys) {
  const QsaCase cases[] = {
      {.requests = 3, .page_size = 8, .keys_of = {40, 3, 17}, .weights = true},
      {.requests = 3, .rows = Rows::kPacked, .rows_of = {5, 0, 9}, .page_size = 4, .layout = cases::Layout::kStrided},
      {.requests = 2,
       .queries = 3,
       .rows = Rows::kMapped,
       .page_size = 16,
       .positions = Positions::kScattered,
       .topk = 7}};
  for (const QsaCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    const QsaIndex call(c, TESSERA_BF16);
    TestTensor keys(TESSERA_I32, {c.requests});
    for (int64_t b = 0; b < c.requests; ++b) keys.set(b, static_cast<double>(call.keys_of(b)));
    for (const bool tokens : {false, true}) {
      const auto result = [&] { return tokens ? call.tokens_tensor() : call.indices_tensor(); };
      expect_ids(call.page_table, keys, call.paged.k, c.page_size, tokens ? call.select_tokens() : call.select(),
                 result, [&](const Shard& own, const tessera_tensor& to, const tessera_communicator& ranks) {
                   tessera_qsa_select_args a = tokens ? call.select_args({}, to) : call.select_args(to);
                   a.index.k = index_pages(own.k, c.head_axis);
                   a.index.page_table = own.table;
                   const tessera_context context = one_thread();
                   return tessera_qsa_select_parallel(&a, &ranks, &context);
                 });
    }
  }
}

TEST(ParallelSelect, WhatIsNotTakenIsRefused) {
  const Index call({.keys_form = Form::kPaged, .page_size = 24}, TESSERA_F32);
  const TestTensor to = call.indices_tensor();
  const tessera_msa_select_args a = call.select_args(to);
  for (tessera_parallel parallel : {TESSERA_QUERY_PARALLEL, TESSERA_CONTEXT_PARALLEL}) {
    ThreadRanks ranks(2);
    for (const auto& result : ranks.run(
             parallel, [&](const tessera_communicator& c) { return tessera_msa_select_parallel(&a, &c, nullptr); })) {
      EXPECT_NE(result.status, TESSERA_OK);
      EXPECT_NE(result.message.find("rank 0: "), std::string::npos) << result.message;
    }
  }
}

}  // namespace
}  // namespace tessera::test
