// What must not change a bit of packed and paged attention: executors, the workspace, the rest of the call, the width
// and the order of lists.
#include <gtest/gtest.h>

#include <climits>
#include <cstring>
#include <string>
#include <vector>

#include "attention_bits.h"
#include "msa_attention.h"

namespace tessera::test {
namespace {

using cases::Ids;

// Calls with several tiles, chunks of keys, heads and requests; with prefill and decode in one; with splits.
const MsaCase kMsaCalls[] = {
    {.rows = {100, 1, 0, 37}, .keys = {200, 130, 20, 37}, .group = 3, .block = 32, .gap = 2},
    {.rows = {70, 5, 1}, .keys = {150, 99, 2100}, .group = 5, .block = 24, .width = 5, .page = 16},
    {.rows = {1, 2, 5}, .keys = {2049, 65, 4200}, .group = 4, .block = 128, .page = 128, .ids = Ids::kAll},
    {.rows = {129, 3}, .keys = {257, 2300}, .kv_heads = 1, .group = 16, .block = 200, .page = 64, .ids = Ids::kAll},
    {.rows = {30, 30},
     .keys = {90, 70},
     .group = 8,
     .dim = 40,
     .dim_v = 24,
     .page = 3,
     .causal = false,
     .layout = cases::Layout::kStrided},
};

class MsaBits : public testing::TestWithParam<Choice> {
 protected:
  tessera_context context() const { return with_variant(GetParam().variant.c_str()); }
  Msa make(const MsaCase& c, uint64_t stream = 0) const { return make_msa(c, GetParam().dtype, stream); }

  Output run_args(const MsaArgs& args, const Output& into) const {
    MsaArgs a = args;
    a.out = into.out;
    a.lse = into.lse;
    const tessera_context ctx = context();
    EXPECT_EQ(tessera_msa_sparse_attention(&a, &ctx), TESSERA_OK) << tessera_last_error();
    return into;
  }
};
INSTANTIATE_TEST_SUITE_P(Msa, MsaBits, testing::ValuesIn(choices()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(MsaBits, AreTheSameForEveryNumberOfThreads) {
  for (const MsaCase& c : kMsaCalls) {
    SCOPED_TRACE(text(c));
    const Msa call = make(c);
    const Output want = call.run(context());
    for (int n : {1, 2, 3, 7}) {
      tessera_context threads = context();
      threads.executor.kind = TESSERA_EXECUTOR_THREADS;
      threads.executor.num_threads = n;
      EXPECT_EQ(call.run(threads), want) << n;
    }
  }
}

TEST_P(MsaBits, AreTheSameInParts) {
  for (const MsaCase& c : kMsaCalls) {
    SCOPED_TRACE(text(c));
    const Msa call = make(c);
    const Output want = call.run(context());
    for (int parts = 1; parts <= 5; ++parts) {
      SCOPED_TRACE(parts);
      const Output got = call.output();
      const MsaArgs a = call.args_into(got);
      tessera_context part = context();
      part.executor.kind = TESSERA_EXECUTOR_PART;
      part.executor.num_parts = parts;
      for (part.executor.part = parts - 1; part.executor.part >= 0; --part.executor.part) {
        ASSERT_EQ(tessera_msa_sparse_attention(&a, &part), TESSERA_OK) << tessera_last_error();
      }
      expect_clean(got.out, "out");
      expect_clean(got.lse, "lse");
      EXPECT_EQ(got, want);
    }
  }
}

// The workspace has exactly the size that the library says, between guard pages; with a byte less nothing is written.
TEST_P(MsaBits, AreTheSameInTheCallersWorkspace) {
  for (const MsaCase& c : kMsaCalls) {
    for (int parts : {0, 3}) {
      SCOPED_TRACE(text(c) + " in parts " + std::to_string(parts));
      const Msa call = make(c);
      const Output want = call.run(context()), got = call.output();
      const MsaArgs a = call.args_into(got);
      tessera_context mine = context();
      if (parts != 0) mine.executor = {TESSERA_EXECUTOR_PART, 0, 0, parts, nullptr, nullptr};
      size_t bytes = 0;
      ASSERT_EQ(tessera_msa_sparse_attention_workspace_size(&a, &mine, &bytes), TESSERA_OK) << tessera_last_error();
      ASSERT_EQ(bytes % 64, 0u);
      const Guarded memory(bytes);
      std::memset(memory.data(), 0xff, bytes);  // NaN in every type
      mine.workspace = memory.data();
      mine.workspace_bytes = bytes - 1;
      EXPECT_EQ(tessera_msa_sparse_attention(&a, &mine), TESSERA_INVALID_ARGUMENT);
      const std::string message = tessera_last_error();
      EXPECT_NE(message.find("workspace_bytes is " + std::to_string(bytes - 1)), std::string::npos) << message;
      EXPECT_NE(message.find("at least " + std::to_string(bytes)), std::string::npos) << message;
      EXPECT_TRUE(got.out.untouched() && got.lse.untouched());
      mine.workspace_bytes = bytes;
      for (int repeat = 0; repeat < 2; ++repeat) {
        for (int part = 0; part < std::max(parts, 1); ++part) {
          if (parts != 0) mine.executor.part = part;
          ASSERT_EQ(tessera_msa_sparse_attention(&a, &mine), TESSERA_OK) << tessera_last_error();
        }
        EXPECT_EQ(got, want) << repeat;
      }
    }
  }
}

std::vector<uint32_t> bits_from(const TestTensor& t, int64_t first, int64_t count) {
  std::vector<uint32_t> bits;
  for (int64_t i = first; i < first + count; ++i) bits.push_back(t.bits(i));
  return bits;
}

// Each request, and some rows, as calls of their own.
TEST_P(MsaBits, DoNotDependOnTheRestOfTheCall) {
  for (const MsaCase& c : kMsaCalls) {
    SCOPED_TRACE(text(c));
    const Msa call = make(c);
    const Output whole = call.run(context());
    const auto expect_same = [&](int64_t b, int64_t t, int64_t rows) {
      SCOPED_TRACE(testing::Message() << "request " << b << ", rows from " << t << ": " << rows);
      const int64_t first = call.first_row(b) + t;
      MsaArgs a = call.args();
      a.q = slice(call.q, 0, first, rows);
      a.q2k_indices = slice(call.ids, 1, first, rows);
      const TestTensor cu_q = ints({0, rows}), offset = ints({call.position(b, t)});
      const TestTensor cu_k = ints({call.first_key(b), call.first_key(b) + call.keys_of(b)});
      a.sequences.cu_seqlens_q = cu_q;
      a.sequences.q_offset = offset;
      if (c.page == 0) {
        a.sequences.cu_seqlens_k = cu_k;
      } else {
        a.sequences.page_table = slice(call.table, 0, b, 1);
        a.sequences.seqused_k = slice(call.used, 0, b, 1);
      }
      const Output alone =
          run_args(a, {TestTensor(call.dtype, {rows, c.heads(), c.dim_v}), TestTensor(TESSERA_F32, {rows, c.heads()})});
      const int64_t at = first * c.heads(), count = rows * c.heads();
      EXPECT_EQ(alone.out.all_bits(), bits_from(whole.out, at * c.dim_v, count * c.dim_v));
      EXPECT_EQ(alone.lse.all_bits(), bits_from(whole.lse, at, count));
    };
    Random random(3);
    for (int64_t b = 0; b < c.requests(); ++b) {
      if (call.rows_of(b) == 0) continue;
      expect_same(b, 0, call.rows_of(b));
      const int64_t t = random.below(call.rows_of(b));
      expect_same(b, t, 1);
      expect_same(b, t, 1 + random.below(call.rows_of(b) - t));
    }
  }
}

// Lists with useless entries in any place, up to where the plan makes chunks of them.
TEST_P(MsaBits, DoNotDependOnUselessIdsOrTheirOrder) {
  for (const MsaCase& c : kMsaCalls) {
    SCOPED_TRACE(text(c));
    Msa call = make(c);
    const Output want = call.run(context());
    const TestTensor ids = call.ids;
    const int64_t old_width = c.list_width();
    for (int64_t more : {1, 200}) {
      const int64_t width = old_width + more;
      Msa wide = call;
      wide.ids = TestTensor(TESSERA_I32, {c.kv_heads, c.total_rows(), width});
      Random random(4);
      for (int64_t i = 0; i < c.kv_heads * c.total_rows(); ++i) {
        std::vector<double> list(static_cast<size_t>(width), -1);
        for (int64_t w = 0; w < old_width; ++w) list[static_cast<size_t>(w)] = ids.get(i * old_width + w);
        if (more == 200) {
          for (size_t w = list.size(); w > 1; --w) std::swap(list[w - 1], list[static_cast<size_t>(random.below(w))]);
          for (double& id : list) {
            if (id == -1 && random.chance(3)) id = random.chance(2) ? INT_MIN : INT_MAX;
          }
        }
        for (int64_t w = 0; w < width; ++w) wide.ids.set(i * width + w, list[static_cast<size_t>(w)]);
      }
      EXPECT_EQ(wide.run(context()), want) << more;
    }
  }
}

// The weight of key 0 underflows beside that of key 2, whose value is -0: the sum is a zero, and of which sign must depend
// neither on merges nor on whether another row sees key 3.
TEST_P(MsaBits, DoNotDependOnTheSignOfAZero) {
  Msa call = make({.rows = {2}, .keys = {4}, .kv_heads = 1, .group = 1, .dim = 8, .dim_v = 8, .block = 2, .scale = 1});
  for (int64_t d = 0; d < 4 * 8; ++d) {
    call.q.set(d % 16, d % 8 == 0 ? 100 : 0);
    call.k.set(d, d / 8 == 2 ? 100 : -100);
    call.v.set(d, d / 8 == 2 ? -0.0 : d / 8 == 3 ? 1 : -1);
  }
  const auto first_row = [&](int64_t rows, int64_t width) {
    Msa some = call;
    some.shape.rows = {rows};
    some.q = TestTensor(call.dtype, {rows, 1, 8});
    for (int64_t i = 0; i < rows * 8; ++i) some.q.set(i, call.q.get(i));
    some.ids = TestTensor(TESSERA_I32, {1, rows, width});
    for (int64_t i = 0; i < rows * width; ++i) some.ids.set(i, static_cast<double>(i % width < 2 ? i % width : -1));
    some.cu_q = ints({0, rows});
    some.q_offset = ints({2});
    const Output got = some.run(context());
    return bits_from(got.out, 0, 8);
  };
  const std::vector<uint32_t> want = first_row(1, 2);
  EXPECT_EQ(first_row(2, 2), want);
  EXPECT_EQ(first_row(1, 4000), want);
}

// What other calls leave in the library's buffers does not show.
TEST_P(MsaBits, AreThoseOfTheFirstRun) {
  const Msa call = make(kMsaCalls[2]), other = make(kMsaCalls[0], 1);
  const Output first = call.run(context()), first_other = other.run(context());
  EXPECT_EQ(call.run(context()), first);
  EXPECT_EQ(other.run(context()), first_other);
}

}  // namespace
}  // namespace tessera::test
