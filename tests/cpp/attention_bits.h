// What the tests of bits share: calls with several of everything, every variant they run on, and calls that are parts of
// others.
#ifndef TESSERA_TESTS_ATTENTION_BITS_H_
#define TESSERA_TESTS_ATTENTION_BITS_H_

#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "attention.h"

namespace tessera::test {

using cases::BlockAttn;

// Calls with several tiles, lists, chunks of keys, heads and requests.
inline constexpr BlockAttn kCalls[] = {
    {.requests = 2,
     .queries = 100,
     .keys = 300,
     .kv_heads = 2,
     .group = 3,
     .block = 32,
     .block_q = 7,
     .per_head = true},
    {.queries = 257,
     .keys = 257,
     .group = 4,
     .block = 64,
     .block_q = 64,
     .width = 3,
     .layout = cases::Layout::kStrided},
    {.requests = 3,
     .queries = 70,
     .keys = 150,
     .group = 5,
     .block = 16,
     .block_q = 1,
     .offset = cases::Offset::kPerRequest},
    {.requests = 2,
     .queries = 1,
     .keys = 4300,
     .kv_heads = 2,
     .group = 4,
     .block = 100,
     .block_q = 1,
     .ids = cases::Ids::kAll},
    {.queries = 9, .keys = 6500, .group = 2, .block = 128, .block_q = 4, .width = 40, .per_head = true},
    {.queries = 150, .keys = 90, .group = 8, .dim = 40, .dim_v = 24, .block = 33, .block_q = 200, .causal = false},
};

struct Choice {
  std::string variant;
  tessera_dtype dtype;

  std::string name() const { return variant + "_" + dtype_name(dtype); }
};
inline void PrintTo(const Choice& choice, std::ostream* os) { *os << choice.name(); }

// The types that differ in how they are computed.
inline constexpr tessera_dtype kComputedApart[] = {TESSERA_BF16, TESSERA_F32};

// Every variant that runs here, with those of the types that it takes.
inline std::vector<Choice> choices(std::span<const tessera_dtype> dtypes = kComputedApart) {
  std::vector<Choice> all;
  for (const std::string& name : variants()) {
    for (const tessera_dtype dtype : dtypes) {
      if (takes(name, dtype)) all.push_back({name, dtype});
    }
  }
  return all;
}

class BlockAttnBits : public testing::TestWithParam<Choice> {
 protected:
  tessera_context context() const { return with_variant(GetParam().variant.c_str()); }
  Attention make(const BlockAttn& c, uint64_t stream = 0) const { return make_attention(c, GetParam().dtype, stream); }
};
// One request, query or list of a call as a call of its own.
inline tessera_tensor slice(tessera_tensor t, int axis, int64_t first, int64_t count) {
  const int64_t size = t.dtype == TESSERA_BF16 || t.dtype == TESSERA_F16 ? 2 : 4;
  t.data = static_cast<char*>(t.data) + first * t.stride[axis] * size;
  t.shape[axis] = count;
  return t;
}

inline Output run(const Args& args, const Output& into, const tessera_context& context) {
  Args a = args;
  a.out = into.out;
  a.lse = into.lse;
  EXPECT_EQ(tessera_block_sparse_gqa_prefill(&a, &context), TESSERA_OK) << tessera_last_error();
  return into;
}

// The same lists with each row rewritten by change(list).
template <class Change>
TestTensor with_lists(const Attention& call, int64_t width, Change change) {
  Shape shape(call.ids.view().shape, call.ids.view().shape + call.ids.view().ndim);
  const int64_t old_width = shape.back();
  shape.back() = width;
  TestTensor ids(TESSERA_I32, shape);
  for (int64_t i = 0; old_width != 0 && i < call.ids.elements() / old_width; ++i) {
    std::vector<double> list;
    for (int64_t w = 0; w < old_width; ++w) list.push_back(call.ids.get(i * old_width + w));
    change(list);
    for (int64_t w = 0; w < width; ++w) ids.set(i * width + w, list[static_cast<size_t>(w)]);
  }
  return ids;
}

// Bits of all elements.
using Bits = std::vector<uint32_t>;

// The workspace may hold anything, and one byte less than asked for is refused.
template <class Args>
void expect_same_in_workspace(const Args& args, const TestTensor& to, const Bits& want, tessera_context mine,
                              tessera_status (*size)(const Args*, const tessera_context*, size_t*),
                              tessera_status (*op)(const Args*, const tessera_context*)) {
  size_t bytes = 0;
  ASSERT_EQ(size(&args, &mine, &bytes), TESSERA_OK) << tessera_last_error();
  const Guarded memory(bytes);
  std::memset(memory.data(), 0xff, bytes);  // NaN in every type
  mine.workspace = memory.data();
  for (const size_t few : {size_t{0}, bytes / 2, bytes - 1}) {
    if (bytes == 0) break;
    mine.workspace_bytes = few;
    EXPECT_EQ(op(&args, &mine), TESSERA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tessera_last_error()).find("workspace_bytes"), std::string::npos) << tessera_last_error();
    EXPECT_TRUE(to.untouched());
  }
  mine.workspace_bytes = bytes;
  EXPECT_EQ(op(&args, &mine), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(to.all_bits(), want);
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_ATTENTION_BITS_H_
