// Selection over keys in pages: what contiguous keys give, bit for bit, and no more than exists.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <string>
#include <vector>

#include "paged.h"
#include "select.h"

namespace tessera::test {
namespace {

constexpr int64_t kPageSizes[] = {1, 3, 16, 24, 64, 128, 256};

struct PagedSelect {
  Select call;
  Paged paged;

  PagedSelect(const SelectCase& c, tessera_dtype dtype, int64_t page_size, const std::vector<int64_t>& lengths,
              double poison = std::nan(""))
      : call(c, dtype), paged(in_pages(call.k, page_size, lengths, poison, c.layout == cases::Layout::kStrided)) {}

  SelectArgs args() const {
    SelectArgs a = call.args();
    a.k = paged.k;
    a.page_table = paged.page_table;
    a.seqused_k = paged.seqused_k;
    return a;
  }
  TestTensor run(Selector s, const tessera_context& context) const {
    const TestTensor to = call.indices();
    SelectArgs a = args();
    a.indices = to;
    EXPECT_EQ(select(s, a, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to, "indices");
    return to;
  }
  reference::Selection expected(Selector s) const { return select_oracle(s, args()); }
};

template <class Body>
void for_each_selector(tessera_dtype dtype, const Body& body) {
  for (Selector s : kSelectors) {
    for (const std::string& variant : variants()) {
      if (!takes(s, variant, dtype)) continue;
      SCOPED_TRACE(std::string(selector_name(s)) + " " + variant + " " + dtype_name(dtype));
      body(s, with_variant(variant.c_str()));
    }
  }
}

TEST(SelectPaged, IsTheSameAsContiguous) {
  const SelectCase calls[] = {
      {.requests = 2, .queries = 90, .keys = 260, .kv_heads = 2, .topk = 5, .block_q = 20},
      {.requests = 2, .queries = 70, .keys = 700, .topk = 2, .block = 200, .block_q = 33, .init = 0},
      {.requests = 2, .queries = 30, .keys = 130, .kv_heads = 2, .block = 3, .layout = cases::Layout::kStrided},
  };
  for (const SelectCase& c : calls) {
    for (int64_t page_size : kPageSizes) {
      SCOPED_TRACE(page_size);
      for (tessera_dtype dtype : {TESSERA_BF16, TESSERA_F32}) {
        const PagedSelect call(c, dtype, page_size, {c.keys, c.keys});
        for_each_selector(dtype, [&](Selector s, const tessera_context& with) {
          EXPECT_EQ(call.run(s, with).all_bits(), call.call.run(s, with).all_bits());
        });
      }
    }
  }
}

// Each request of its own length, against the oracle and against the request alone.
TEST(SelectPaged, CountsTheKeysOfEachRequest) {
  const SelectCase c = {.requests = 5, .queries = 40, .keys = 300, .kv_heads = 2, .topk = 3, .block_q = 9};
  for (int64_t page_size : {3, 24, 128}) {
    const PagedSelect call(c, TESSERA_F32, page_size, {300, 0, 129, 39, 1});
    for_each_selector(TESSERA_F32, [&](Selector s, const tessera_context& with) {
      const TestTensor all = call.run(s, with);
      EXPECT_TRUE(selection_within(all, call.expected(s)));
      const int64_t entries = all.elements() / c.requests;
      for (int64_t b = 0; b < c.requests; ++b) {
        const TestTensor one(TESSERA_I32, {1, c.kv_heads, c.lists(), c.topk});
        SelectArgs a = call.args();
        for (tessera_tensor* t : {&a.q, &a.page_table, &a.seqused_k}) {
          const int64_t size = t == &a.q ? sizeof(float) : sizeof(int32_t);
          t->data = static_cast<char*>(t->data) + b * t->stride[0] * size;
          t->shape[0] = 1;
        }
        a.indices = one;
        ASSERT_EQ(select(s, a, &with), TESSERA_OK) << tessera_last_error();
        for (int64_t i = 0; i < entries; ++i) EXPECT_EQ(one.get(i), all.get(b * entries + i)) << "request " << b;
      }
    });
  }
}

TEST(SelectPaged, KeysBehindInvalidPagesDoNotExist) {
  const SelectCase calls[] = {
      {.requests = 2, .queries = 60, .keys = 300, .kv_heads = 2, .topk = 4, .block_q = 7},
      {.requests = 2, .queries = 60, .keys = 300, .topk = 2, .block = 140, .block_q = 60, .local = 0, .init = 0},
  };
  for (const SelectCase& c : calls) {
    for (int64_t page_size : {1, 16, 24, 64}) {
      SCOPED_TRACE(page_size);
      PagedSelect call(c, TESSERA_F32, page_size, {300, 290});
      Random random(3);
      const int64_t invalid[] = {-1, INT_MIN, INT_MAX, call.paged.k.view().shape[0]};
      for (int64_t i = 0; i < call.paged.page_table.elements(); ++i) {
        if (random.chance(3)) call.paged.page_table.set(i, static_cast<double>(random.pick(invalid)));
      }
      // The first keys of a request are missing as well, and of the second request all but a few.
      call.paged.page_table.set(0, -1);
      for (int64_t i = 0; i + 3 < call.paged.max_pages(); ++i) call.paged.page_table.set(call.paged.entry(1, i), -7);
      for_each_selector(TESSERA_F32, [&](Selector s, const tessera_context& with) {
        EXPECT_TRUE(selection_within(call.run(s, with), call.expected(s)));
      });
    }
  }
}

TEST(SelectPaged, LengthsAreCutToWhatThePagesHold) {
  const SelectCase c = {.requests = 4, .queries = 20, .keys = 64, .topk = 3, .block = 8, .block_q = 4};
  PagedSelect call(c, TESSERA_F32, 16, {64, 64, 64, 64});
  for (int64_t i = 0; i < call.paged.page_table.elements(); ++i) call.paged.page_table.set(i, i % 7);
  call.paged.k.fill(0.5);
  const double lengths[] = {INT_MAX, INT_MIN, -1, 81};
  for (int64_t b = 0; b < 4; ++b) call.paged.seqused_k.set(b, lengths[b]);
  for_each_selector(TESSERA_F32, [&](Selector s, const tessera_context& with) {
    const TestTensor got = call.run(s, with);
    EXPECT_TRUE(selection_within(got, call.expected(s)));
    EXPECT_EQ(got.get(4 * c.topk + 2), 9);  // of ten blocks in five pages, the last query's own
    EXPECT_EQ(got.get(5 * c.topk), -1);
  });
}

TEST(SelectPaged, RefusesHalfOfIt) {
  const PagedSelect call({.requests = 2, .kv_heads = 2}, TESSERA_F32, 16, {150, 150});
  for (Selector s : kSelectors) {
    const auto refused = [&](const char* argument, const auto& spoil) {
      const TestTensor to = call.call.indices();
      SelectArgs a = call.args();
      a.indices = to;
      spoil(a);
      EXPECT_EQ(select(s, a, nullptr), TESSERA_INVALID_ARGUMENT);
      EXPECT_NE(std::string(tessera_last_error()).find(argument), std::string::npos) << tessera_last_error();
      EXPECT_TRUE(to.untouched());
    };
    refused("page_table", [](SelectArgs& a) { a.page_table = {}; });
    refused("seqused_k", [](SelectArgs& a) { a.seqused_k = {}; });
    refused("page_table", [](SelectArgs& a) { a.page_table.shape[0] = 1; });
    refused("seqused_k", [](SelectArgs& a) { a.seqused_k.shape[0] = 3; });
    refused("k", [](SelectArgs& a) { a.k.ndim = 3; });
    refused("heads", [](SelectArgs& a) { a.k.shape[1] = 3; });
    refused("indices overlaps page_table", [](SelectArgs& a) { a.indices.data = a.page_table.data; });
    refused("indices overlaps seqused_k", [](SelectArgs& a) { a.indices.data = a.seqused_k.data; });
  }
}

}  // namespace
}  // namespace tessera::test
