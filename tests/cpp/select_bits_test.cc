// What must not change a selection: executors, the other requests of a call, the other query blocks, the workspace.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "select.h"

namespace tessera::test {
namespace {

// Calls with several lists, tasks, row tiles, key tiles, heads and requests. Scores are close to each other, so that a
// changed bit shows in the ids.
const SelectCase kCalls[] = {
    {.requests = 3,
     .queries = 200,
     .keys = 300,
     .kv_heads = 2,
     .group = 3,
     .topk = 5,
     .block = 8,
     .block_q = 32,
     .scale = 1e-3f},
    {.requests = 2,
     .queries = 100,
     .keys = 500,
     .group = 4,
     .block = 32,
     .block_q = 7,
     .layout = cases::Layout::kStrided},
    {.requests = 2,
     .queries = 90,
     .keys = 1000,
     .group = 5,
     .topk = 2,
     .block = 150,
     .block_q = 90,
     .stride = 2,
     .init = 0},
    {.requests = 4,
     .queries = 60,
     .keys = 700,
     .topk = 8,
     .block = 4,
     .block_q = 1,
     .offset = cases::Offset::kPerRequest},
};

struct Choice {
  Selector selector;
  std::string variant;
  tessera_dtype dtype;
};
std::vector<Choice> choices() {
  std::vector<Choice> all;
  for (Selector s : kSelectors) {
    for (const std::string& variant : variants()) {
      for (tessera_dtype dtype : {TESSERA_BF16, TESSERA_F32}) {
        if (takes(s, variant, dtype)) all.push_back({s, variant, dtype});
      }
    }
  }
  return all;
}

class SelectBits : public testing::TestWithParam<Choice> {
 protected:
  tessera_context context() const { return with_variant(GetParam().variant.c_str()); }
  Select make(const SelectCase& c) const { return {c, GetParam().dtype}; }
  std::vector<uint32_t> run(const Select& call, const tessera_context& with) const {
    return call.run(GetParam().selector, with).all_bits();
  }
};
INSTANTIATE_TEST_SUITE_P(Select, SelectBits, testing::ValuesIn(choices()), [](const auto& test) {
  return std::string(selector_name(test.param.selector)) + "_" + test.param.variant + "_" +
         dtype_name(test.param.dtype);
});

TEST_P(SelectBits, AreTheSameForEveryNumberOfThreads) {
  for (const SelectCase& c : kCalls) {
    const Select call = make(c);
    const std::vector<uint32_t> want = run(call, context());
    for (int n : {1, 2, 3, 7}) {
      tessera_context threads = context();
      threads.executor.kind = TESSERA_EXECUTOR_THREADS;
      threads.executor.num_threads = n;
      EXPECT_EQ(run(call, threads), want) << n;
    }
  }
}

TEST_P(SelectBits, AreTheSameInParts) {
  for (const SelectCase& c : kCalls) {
    const Select call = make(c);
    const std::vector<uint32_t> want = run(call, context());
    for (int parts = 1; parts <= 5; ++parts) {
      const TestTensor got = call.indices();
      SelectArgs a = call.args();
      a.indices = got;
      tessera_context part = context();
      part.executor.kind = TESSERA_EXECUTOR_PART;
      part.executor.num_parts = parts;
      for (part.executor.part = parts - 1; part.executor.part >= 0; --part.executor.part) {
        ASSERT_EQ(select(GetParam().selector, a, &part), TESSERA_OK) << tessera_last_error();
      }
      expect_clean(got, "indices");
      EXPECT_EQ(got.all_bits(), want) << parts;
    }
  }
}

// The workspace may hold anything, and one that is too small is refused.
TEST_P(SelectBits, AreTheSameInTheCallersWorkspace) {
  for (const SelectCase& c : kCalls) {
    const Select call = make(c);
    const TestTensor untouched = call.indices();
    SelectArgs a = call.args();
    a.indices = untouched;
    tessera_context mine = context();
    const size_t bytes = select_workspace_size(GetParam().selector, a, &mine);
    const Guarded memory(bytes);
    std::memset(memory.data(), 0xff, bytes);  // NaN in every type
    mine.workspace = memory.data();
    mine.workspace_bytes = bytes;
    EXPECT_EQ(run(call, mine), run(call, context()));

    for (const size_t few : {size_t{0}, size_t{64}, bytes - 1}) {
      mine.workspace_bytes = few;
      EXPECT_EQ(select(GetParam().selector, a, &mine), TESSERA_INVALID_ARGUMENT);
      EXPECT_NE(std::string(tessera_last_error()).find("workspace_bytes"), std::string::npos) << tessera_last_error();
      EXPECT_TRUE(untouched.untouched());
    }
  }
}

tessera_tensor slice(tessera_tensor t, int axis, int64_t first, int64_t count) {
  const int64_t size = t.dtype == TESSERA_BF16 || t.dtype == TESSERA_F16 ? 2 : 4;
  t.data = static_cast<char*>(t.data) + first * t.stride[axis] * size;
  t.shape[axis] = count;
  return t;
}

// Each query block of each request, as a call of its own, with keys that no query of it sees cut off.
TEST_P(SelectBits, DoNotDependOnOtherRequestsAndQueryBlocks) {
  for (const SelectCase& c : kCalls) {
    const Select call = make(c);
    const TestTensor whole = call.run(GetParam().selector, context());
    for (int64_t b = 0; b < c.requests; ++b) {
      for (int64_t list = 0; list < c.lists(); list += 3) {
        const int64_t first = list * c.block_q;
        const int64_t count = std::min(c.block_q, c.queries - first);
        const int64_t offset =
            call.q_offset.view().ndim != 0 ? static_cast<int64_t>(call.q_offset.get(b)) : c.keys - c.queries;
        TestTensor position(TESSERA_I32, {1});
        position.set(0, static_cast<double>(offset + first));
        const TestTensor got(TESSERA_I32, {1, c.kv_heads, 1, c.topk});
        SelectArgs a = call.args();
        a.q = slice(slice(call.q, 0, b, 1), 1, first, count);
        a.k = slice(call.k, 0, b, 1);
        a.block_q = count;
        a.q_offset = position;
        a.indices = got;
        const tessera_context with = context();
        ASSERT_EQ(select(GetParam().selector, a, &with), TESSERA_OK) << tessera_last_error();
        for (int64_t head = 0; head < c.kv_heads; ++head) {
          for (int64_t i = 0; i < c.topk; ++i) {
            EXPECT_EQ(got.get(head * c.topk + i), whole.get(((b * c.kv_heads + head) * c.lists() + list) * c.topk + i))
                << "request " << b << ", list " << list;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
