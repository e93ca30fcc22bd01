// A single query block, one KV head per query head: a prefill of one request with heads outside tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <string>
#include <vector>

#include "msa_attention.h"

namespace tessera::test {
namespace {

using cases::Layout;
using SingleQ = tessera_block_sparse_attention_single_q_args;

struct SingleQCase {
  int64_t heads, queries, keys, dim, dim_v, block, width;
  bool per_head;
  bool causal = true;
  Layout layout = Layout::kDense;
};

struct SingleQCall {
  SingleQCase shape;
  tessera_dtype dtype;
  TestTensor q, k, v, ids, offset, out, lse;

  SingleQCall(const SingleQCase& c, tessera_dtype type) : shape(c), dtype(type) {
    Random random(1);
    const auto tensor = [&](int64_t rows, int64_t dim) {
      const Shape of = {c.heads, rows, dim};
      TestTensor t(dtype, of, strides_for(c.layout, of, 0));
      t.fill_normal(random);
      return t;
    };
    q = tensor(c.queries, c.dim);
    k = tensor(c.keys, c.dim);
    v = tensor(c.keys, c.dim_v);
    const Shape lists = c.per_head ? Shape{c.heads, c.width} : Shape{c.width};
    ids = TestTensor(TESSERA_I32, lists, c.layout == Layout::kStrided ? gappy_strides(lists, 2) : dense_strides(lists));
    std::vector<int64_t> list(static_cast<size_t>(c.width));
    for (int64_t i = 0; i < ids.elements(); i += c.width) {
      fill_list({.keys = c.keys, .block = c.block, .width = c.width}, random, list.data());
      for (int64_t w = 0; w < c.width; ++w) ids.set(i + w, static_cast<double>(list[static_cast<size_t>(w)]));
    }
    const Shape of_out = {c.heads, c.queries, c.dim_v}, of_lse = {c.heads, c.queries};
    const bool gaps = c.layout == Layout::kStrided;
    out = TestTensor(dtype, of_out, gaps ? gappy_strides(of_out, 1) : dense_strides(of_out));
    lse = TestTensor(TESSERA_F32, of_lse, gaps ? gappy_strides(of_lse, 2) : dense_strides(of_lse));
  }

  tessera_mask mask() const { return shape.causal ? TESSERA_MASK_CAUSAL : TESSERA_MASK_NONE; }
  SingleQ args() const { return {q, k, v, ids, shape.block, mask(), nullptr, offset, out, lse}; }

  // The same memory with heads behind tokens: one request of a batch.
  static tessera_tensor turned(const tessera_tensor& t) {
    if (t.ndim == 2) return view_of(t, {1, t.shape[1], t.shape[0]}, {0, t.stride[1], t.stride[0]});
    return view_of(t, {1, t.shape[1], t.shape[0], t.shape[2]}, {0, t.stride[1], t.stride[0], t.stride[2]});
  }
  Args as_prefill(const Output& to) const {
    const tessera_tensor& i = ids;
    Args p = {};
    p.q = turned(q);
    p.k = turned(k);
    p.v = turned(v);
    p.kv_indices = i.ndim == 1 ? view_of(i, {1, 1, i.shape[0]}, {0, 0, i.stride[0]})
                               : view_of(i, {1, i.shape[0], 1, i.shape[1]}, {0, i.stride[0], 0, i.stride[1]});
    p.block_size = shape.block;
    p.block_q = std::max<int64_t>(shape.queries, 1);
    p.mask = mask();
    p.q_offset = offset;
    p.out = to.out;
    p.lse = to.lse;
    if (shape.queries == 0) p.kv_indices.shape[p.kv_indices.ndim - 2] = 0;  // no query, no list
    return p;
  }
};

const SingleQCase kSingleQs[] = {
    {1, 1, 1, 8, 8, 1, 1, false},
    {3, 128, 300, 16, 16, 64, 4, true},
    {2, 33, 129, 24, 40, 24, 3, false, true, Layout::kStrided},
    {2, 33, 129, 24, 40, 24, 3, true, false, Layout::kStrided},
    {2, 5, 2300, 16, 16, 128, 20, true},
    {5, 17, 90, 16, 8, 200, 2, true, true, Layout::kBroadcast},
    {2, 50, 20, 16, 16, 7, 3, false},
    {2, 9, 40, 16, 16, 16, 0, true},
    {2, 0, 40, 16, 16, 16, 2, false},
    {2, 9, 0, 16, 16, 16, 2, false},
};

class SingleQForm : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Msa, SingleQForm, testing::ValuesIn(variants()), [](const auto& test) { return test.param; });

TEST_P(SingleQForm, ASingleBlockOfQueriesIsAPrefillOfOne) {
  for (const SingleQCase& c : kSingleQs) {
    for (tessera_dtype dtype : kFloats) {
      if (!takes(GetParam(), dtype)) continue;
      for (int64_t at : {-4, 20, INT_MAX, INT_MIN, 0}) {
        SCOPED_TRACE(testing::Message() << "case " << &c - kSingleQs << " " << dtype_name(dtype) << " at " << at);
        SingleQCall call(c, dtype);
        if (at != 0) call.offset = ints({at});
        const SingleQ a = call.args();
        const tessera_context ctx = with_variant(GetParam().c_str());
        ASSERT_EQ(tessera_block_sparse_attention_single_q(&a, &ctx), TESSERA_OK) << tessera_last_error();
        expect_clean(call.out, "out");
        expect_clean(call.lse, "lse");

        const Output batch = {TestTensor(dtype, {1, c.queries, c.heads, c.dim_v}),
                              TestTensor(TESSERA_F32, {1, c.queries, c.heads})};
        const Args p = call.as_prefill(batch);
        ASSERT_EQ(tessera_block_sparse_gqa_prefill(&p, &ctx), TESSERA_OK) << tessera_last_error();
        expect_within(batch, dtype, reference::attention(p));
        EXPECT_EQ(reference::View(SingleQCall::turned(call.out)).values(), batch.out.values().values());
        EXPECT_EQ(reference::View(SingleQCall::turned(call.lse)).values(), batch.lse.values().values());
      }
    }
  }
}

TEST(SingleQ, SizesItsWorkspaceAndExplainsItsPlan) {
  const SingleQCall call(kSingleQs[1], TESSERA_BF16);
  const SingleQ a = call.args();
  ASSERT_EQ(tessera_block_sparse_attention_single_q(&a, nullptr), TESSERA_OK) << tessera_last_error();
  const auto want = call.out.all_bits();
  tessera_context context = {};
  size_t bytes = 0;
  ASSERT_EQ(tessera_block_sparse_attention_single_q_workspace_size(&a, &context, &bytes), TESSERA_OK);
  const Guarded memory(bytes);
  context.workspace = memory.data();
  context.workspace_bytes = bytes - 1;
  EXPECT_EQ(tessera_block_sparse_attention_single_q(&a, &context), TESSERA_INVALID_ARGUMENT);
  context.workspace_bytes = bytes;
  ASSERT_EQ(tessera_block_sparse_attention_single_q(&a, &context), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(call.out.all_bits(), want);

  char text[4096];
  ASSERT_EQ(tessera_block_sparse_attention_single_q_explain(&a, nullptr, text, sizeof text), TESSERA_OK);
  EXPECT_NE(std::string(text).find("variant: "), std::string::npos);
  ASSERT_EQ(tessera_block_sparse_attention_single_q_explain(&a, nullptr, text, 5), TESSERA_OK);
  EXPECT_EQ(std::string(text).size(), 4u);
  EXPECT_EQ(tessera_block_sparse_attention_single_q_explain(&a, nullptr, text, 0), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_block_sparse_attention_single_q_explain(&a, nullptr, nullptr, 9), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_block_sparse_attention_single_q_workspace_size(&a, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
}

TEST(SingleQ, TheReferenceOfASingleBlockOfQueriesIsTheOracle) {
  tessera_context reference = {};
  reference.backend = TESSERA_BACKEND_REFERENCE;
  for (const SingleQCase& c : kSingleQs) {
    SCOPED_TRACE(testing::Message() << "case " << &c - kSingleQs);
    const SingleQCall call(c, TESSERA_F16);
    const SingleQ a = call.args();
    ASSERT_EQ(tessera_block_sparse_attention_single_q(&a, &reference), TESSERA_OK) << tessera_last_error();
    expect_clean(call.out, "out");
    const reference::Attention want = reference::attention(a);
    const std::vector<double> got = reference::View(SingleQCall::turned(call.out)).values();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], reference::decode16(reference::encode16(want.out[i], 5), 5)) << "at " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::test
