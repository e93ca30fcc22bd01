// What must not change a bit of block-sparse attention: executors, the rest of the batch, the rest of the request, the
// order of a list and useless ids in it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "attention_bits.h"

namespace tessera::test {
namespace {

INSTANTIATE_TEST_SUITE_P(BlockAttn, BlockAttnBits, testing::ValuesIn(choices()),
                         [](const auto& test) { return test.param.name(); });

// A host's parallel-for: threads that take the indices from the last to the first.
void host_parallel_for(void* host, int32_t n, void (*body)(void*, int32_t), void* arg) {
  std::atomic<int32_t> left = n;
  std::vector<std::thread> threads;
  for (int i = 0; i < *static_cast<int*>(host); ++i) {
    threads.emplace_back([&] {
      for (int32_t index = --left; index >= 0; index = --left) body(arg, index);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(BlockAttnBits, AreTheSameForEveryExecutor) {
  for (const BlockAttn& c : kCalls) {
    SCOPED_TRACE(name(c));
    const Attention call = make(c);
    const Output want = call.run(context());
    const State want_state = call.run_state(context());
    for (int n : {1, 2, 3, 7}) {
      SCOPED_TRACE(n);
      tessera_context threads = context();
      threads.executor.kind = TESSERA_EXECUTOR_THREADS;
      threads.executor.num_threads = n;
      EXPECT_EQ(call.run(threads), want);
      EXPECT_EQ(call.run_state(threads), want_state);

      tessera_context host = context();
      int host_threads = n;
      host.executor.kind = TESSERA_EXECUTOR_PARALLEL_FOR;
      host.executor.num_threads = n;
      host.executor.parallel_for = host_parallel_for;
      host.executor.host = &host_threads;
      EXPECT_EQ(call.run(host), want);
    }
  }
}

TEST_P(BlockAttnBits, AreTheSameInParts) {
  for (const BlockAttn& c : kCalls) {
    SCOPED_TRACE(name(c));
    const Attention call = make(c);
    const Output want = call.run(context());
    for (int parts = 1; parts <= 5; ++parts) {
      SCOPED_TRACE(parts);
      const Output got = call.output();
      const Args a = call.args_into(got);
      tessera_context part = context();
      part.executor.kind = TESSERA_EXECUTOR_PART;
      part.executor.num_parts = parts;
      for (part.executor.part = parts - 1; part.executor.part >= 0; --part.executor.part) {
        ASSERT_EQ(tessera_block_sparse_gqa_prefill(&a, &part), TESSERA_OK) << tessera_last_error();
      }
      expect_clean(got.out, "out");
      expect_clean(got.lse, "lse");
      EXPECT_EQ(got, want);
    }
  }
}

TEST_P(BlockAttnBits, AreTheSameInTheCallersWorkspace) {
  for (const BlockAttn& c : kCalls) {
    SCOPED_TRACE(name(c));
    const Attention call = make(c);
    const Args a = call.args_into(call.output());
    tessera_context mine = context();
    size_t bytes = 0;
    ASSERT_EQ(tessera_block_sparse_gqa_prefill_workspace_size(&a, &mine, &bytes), TESSERA_OK) << tessera_last_error();
    const Guarded memory((bytes + 63) / 64 * 64);
    std::memset(memory.data(), 0xff, bytes);  // NaN in every type
    mine.workspace = memory.data();
    mine.workspace_bytes = bytes;
    const Output want = call.run(context());
    EXPECT_EQ(call.run(mine), want);
    EXPECT_EQ(call.run(mine), want) << "from the second run on";
    EXPECT_EQ(call.run_state(mine), call.run_state(context()));
  }
}

TEST_P(BlockAttnBits, AreTheSameFromSeveralHostThreads) {
  const Attention call = make(kCalls[0]);
  const Output want = call.run(context());
  std::vector<Output> got(4);
  std::vector<std::thread> threads;
  for (Output& output : got) threads.emplace_back([&] { output = call.run(context()); });
  for (std::thread& thread : threads) thread.join();
  for (const Output& output : got) EXPECT_EQ(output, want);
}

// Rows [row, row + n) of a result, to compare with a smaller call's.
std::vector<uint32_t> bits_from(const TestTensor& t, int64_t row, int64_t rows, int64_t per_row) {
  std::vector<uint32_t> bits;
  for (int64_t i = row * per_row; i < (row + rows) * per_row; ++i) bits.push_back(t.bits(i));
  return bits;
}

TEST_P(BlockAttnBits, DoNotDependOnTheOtherRequests) {
  for (const BlockAttn& c : kCalls) {
    if (c.requests == 1) continue;
    SCOPED_TRACE(name(c));
    const Attention call = make(c);
    const Output whole = call.run(context());
    const int64_t rows = c.queries * c.heads();
    for (int64_t b = 0; b < c.requests; ++b) {
      Args a = call.args();
      a.q = slice(call.q, 0, b, 1);
      a.k = slice(call.k, 0, b, 1);
      a.v = slice(call.v, 0, b, 1);
      a.kv_indices = slice(call.ids, 0, b, 1);
      if (a.q_offset.ndim != 0) a.q_offset = slice(call.q_offset, 0, b, 1);
      const Output into = {TestTensor(call.dtype, {1, c.queries, c.heads(), c.dim_v}),
                           TestTensor(TESSERA_F32, {1, c.queries, c.heads()})};
      const Output alone = run(a, into, context());
      EXPECT_EQ(alone.out.all_bits(), bits_from(whole.out, b * rows, rows, c.dim_v));
      EXPECT_EQ(alone.lse.all_bits(), bits_from(whole.lse, b * rows, rows, 1));
    }
  }
}

TEST_P(BlockAttnBits, DoNotDependOnTheOtherRows) {
  for (const BlockAttn& c : kCalls) {
    SCOPED_TRACE(name(c));
    const Attention call = make(c);
    const Output whole = call.run(context());
    Random random(3);
    for (int repeat = 0; repeat < 12; ++repeat) {
      const int64_t b = random.below(c.requests);
      const int64_t t = random.below(c.queries);
      SCOPED_TRACE(testing::Message() << "request " << b << ", query " << t);
      Args a = call.args();
      a.q = slice(slice(call.q, 0, b, 1), 1, t, 1);
      a.k = slice(call.k, 0, b, 1);
      a.v = slice(call.v, 0, b, 1);
      a.kv_indices = slice(slice(call.ids, 0, b, 1), c.per_head ? 2 : 1, t / c.block_q, 1);
      TestTensor offset(TESSERA_I32, {1});
      offset.set(0, static_cast<double>(call.position(b, t)));
      a.q_offset = offset;
      const Output into = {TestTensor(call.dtype, {1, 1, c.heads(), c.dim_v}),
                           TestTensor(TESSERA_F32, {1, 1, c.heads()})};
      const Output alone = run(a, into, context());
      const int64_t row = (b * c.queries + t) * c.heads();
      EXPECT_EQ(alone.out.all_bits(), bits_from(whole.out, row, c.heads(), c.dim_v));
      EXPECT_EQ(alone.lse.all_bits(), bits_from(whole.lse, row, c.heads(), 1));
    }
  }
}

TEST_P(BlockAttnBits, DoNotDependOnTheOrderOrUselessIds) {
  for (const BlockAttn& c : kCalls) {
    SCOPED_TRACE(name(c));
    Attention call = make(c);
    const Output want = call.run(context());
    const TestTensor ids = call.ids;
    Random random(4);
    call.ids = with_lists(call, c.list_width(), [&](std::vector<double>& list) {
      for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[static_cast<size_t>(random.below(i))]);
    });
    EXPECT_EQ(call.run(context()), want) << "permuted";
    call.ids = ids;
    call.ids = with_lists(call, c.list_width() + 70, [&](std::vector<double>& list) {
      for (int i = 0; i < 40; ++i) list.push_back(i % 3 == 0 ? -1 : i % 3 == 1 ? INT_MAX : c.blocks() + i);
      for (int i = 0; i < 30; ++i) list.push_back(list[static_cast<size_t>(random.below(c.list_width()))]);
    });
    EXPECT_EQ(call.run(context()), want) << "with invalid and repeated ids appended";
  }
}

TEST_P(BlockAttnBits, AllBlocksAreDenseAttention) {
  for (bool causal : {true, false}) {
    const BlockAttn whole = {
        .queries = 60, .keys = 133, .group = 3, .block = 133, .block_q = 60, .causal = causal, .ids = cases::Ids::kAll};
    const Attention dense = make(whole);
    const reference::Attention want = dense.expected();
    for (int64_t block : {1, 16, 100, 128}) {
      SCOPED_TRACE(block);
      BlockAttn c = whole;
      c.block = block;
      c.block_q = 9;
      Attention call = make(c);
      call.q = dense.q;
      call.k = dense.k;
      call.v = dense.v;
      const Output got = call.run(context());
      EXPECT_TRUE(out_within(got.out, call.dtype, want.out, want.spread, want.reach));
      EXPECT_TRUE(log_within("lse", got.lse, call.dtype, want.lse, want.reach));
    }
  }
}

}  // namespace
}  // namespace tessera::test
