// The same attention by way of other operators: batches of equal requests, paged keys under shared lists, states, and a
// single block of queries.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "msa_attention.h"

namespace tessera::test {
namespace {

using cases::Ids;
using cases::Layout;
using SingleQ = tessera_block_sparse_attention_single_q_args;

class AttentionForm : public testing::TestWithParam<std::string> {
 protected:
  tessera_context context() const { return with_variant(GetParam().c_str()); }
  std::vector<tessera_dtype> dtypes() const {
    std::vector<tessera_dtype> all;
    for (tessera_dtype dtype : kFloats) {
      if (takes(GetParam(), dtype)) all.push_back(dtype);
    }
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(Msa, AttentionForm, testing::ValuesIn(variants()),
                         [](const auto& test) { return test.param; });

tessera_tensor view_of(const tessera_tensor& t, const Shape& shape, const Shape& strides) {
  tessera_tensor view = t;
  view.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape);
  std::copy(strides.begin(), strides.end(), view.stride);
  return view;
}

// Rows of equal requests, [B n, ...], as [B, n, ...].
tessera_tensor as_batch(const tessera_tensor& t, int64_t requests) {
  const int64_t n = t.shape[0] / requests, row = t.stride[0];
  if (t.ndim == 2) return view_of(t, {requests, n, t.shape[1]}, {n * row, row, t.stride[1]});
  return view_of(t, {requests, n, t.shape[1], t.shape[2]}, {n * row, row, t.stride[1], t.stride[2]});
}

// A call whose requests have equal lengths, as a batch with one list per query.
Args as_prefill(const Msa& call, const Output& to) {
  const int64_t b = call.shape.requests();
  const tessera_tensor& ids = call.ids;
  const int64_t n = ids.shape[1] / b;
  Args a = {};
  a.q = as_batch(call.q, b);
  a.k = call.shape.page == 0 ? as_batch(call.k, b) : call.k;
  a.v = call.shape.page == 0 ? as_batch(call.v, b) : call.v;
  a.kv_indices = view_of(ids, {b, ids.shape[0], n, ids.shape[2]},
                         {n * ids.stride[1], ids.stride[0], ids.stride[1], ids.stride[2]});
  a.block_size = call.shape.block;
  a.block_q = 1;
  a.mask = call.shape.causal ? TESSERA_MASK_CAUSAL : TESSERA_MASK_NONE;
  a.q_offset = call.q_offset;
  a.page_table = call.table;
  a.seqused_k = call.used;
  a.out = as_batch(to.out, b);
  a.lse = as_batch(to.lse, b);
  return a;
}

const MsaCase kEqual[] = {
    {.rows = {40, 40}, .keys = {150, 150}, .group = 3},
    {.rows = {1, 1, 1}, .keys = {2100, 2100, 2100}, .block = 128, .ids = Ids::kAll},
    {.rows = {5, 5}, .keys = {77, 77}, .dim = 24, .dim_v = 40, .block = 24, .layout = Layout::kStrided},
    {.rows = {9}, .keys = {4}, .block = 3, .offset = cases::Offset::kPerRequest},
    {.rows = {70}, .keys = {300}, .group = 5, .block = 200, .causal = false},
};

TEST_P(AttentionForm, PackedPagedAndBatchHaveTheSameBits) {
  for (const MsaCase& c : kEqual) {
    for (tessera_dtype dtype : dtypes()) {
      SCOPED_TRACE(text(c) + " " + dtype_name(dtype));
      const Msa packed = make_msa(c, dtype);
      const Output want = packed.run(context());
      std::vector<Msa> forms = {packed};
      for (int64_t page : {1, 24, 64, 256}) {
        SCOPED_TRACE(page);
        forms.push_back(in_pages(packed, page));
        EXPECT_EQ(forms.back().run(context()), want);
      }
      for (const Msa& form : forms) {
        SCOPED_TRACE(form.shape.page);
        const Output got = form.output();
        const Args a = as_prefill(form, got);
        const tessera_context ctx = context();
        ASSERT_EQ(tessera_block_sparse_gqa_prefill(&a, &ctx), TESSERA_OK) << tessera_last_error();
        EXPECT_EQ(got, want);
      }
    }
  }
}

// Requests of different lengths, packed and in pages.
TEST_P(AttentionForm, RaggedPackedAndPagedHaveTheSameBits) {
  for (tessera_dtype dtype : dtypes()) {
    const Msa packed = make_msa({.rows = {70, 0, 1, 5}, .keys = {90, 30, 2100, 0}, .group = 3, .block = 64}, dtype);
    const Output want = packed.run(context());
    for (int64_t page : {1, 24, 64, 100, 256}) EXPECT_EQ(in_pages(packed, page).run(context()), want) << page;
  }
}

// ---- Shared lists over paged keys, and states ---------------------------------------------------------------------------------

// A batch whose keys lie in pages, with lists for all heads; request b has fewer keys than the table holds.
struct PagedPrefill {
  Attention call;  // k and v of it are the pages
  TestTensor table, used;

  PagedPrefill(const cases::BlockAttn& c, tessera_dtype dtype, int64_t page) : call(make_attention(c, dtype)) {
    MsaCase keys = {.rows = {}, .keys = {}, .kv_heads = c.kv_heads, .dim = c.dim, .dim_v = c.dim_v, .page = page};
    for (int64_t b = 0; b < c.requests; ++b) {
      keys.rows.push_back(1);
      keys.keys.push_back(c.keys - 7 * b);
    }
    const Msa pages = make_msa(keys, dtype);
    call.k = pages.k;
    call.v = pages.v;
    table = pages.table;
    used = pages.used;
  }
  template <class To>
  Args args_into(const To& to) const {
    Args a = call.args_into(to);
    a.page_table = table;
    a.seqused_k = used;
    return a;
  }
};

TEST_P(AttentionForm, SharedListsOverPagedKeysMatchTheOracle) {
  const cases::BlockAttn shapes[] = {
      {.requests = 2, .queries = 70, .keys = 200, .kv_heads = 2, .block_q = 32},
      {.requests = 3,
       .queries = 33,
       .keys = 90,
       .kv_heads = 2,
       .group = 3,
       .block = 24,
       .block_q = 8,
       .per_head = true},
      {.requests = 2, .queries = 1, .keys = 2400, .group = 4, .block = 100, .ids = Ids::kAll},
      {.requests = 2, .queries = 9, .keys = 40, .block_q = 4, .causal = false, .layout = Layout::kStrided},
      {.requests = 2, .queries = 9, .keys = 40, .block_q = 9, .offset = cases::Offset::kPerRequest},
  };
  for (const cases::BlockAttn& c : shapes) {
    for (int64_t page : {1, 24, 128}) {
      for (tessera_dtype dtype : dtypes()) {
        SCOPED_TRACE(name(c) + " " + dtype_name(dtype) + " ps " + std::to_string(page));
        const PagedPrefill paged(c, dtype, page);
        const Output got = paged.call.output();
        const State state = paged.call.state();
        const Args a = paged.args_into(got), s = paged.args_into(state);
        const tessera_context ctx = context();
        const reference::Attention want = reference::attention(a);
        ASSERT_EQ(tessera_block_sparse_gqa_prefill(&a, &ctx), TESSERA_OK) << tessera_last_error();
        ASSERT_EQ(tessera_block_sparse_gqa_prefill_state(&s, &ctx), TESSERA_OK) << tessera_last_error();
        expect_clean(got.out, "out");
        expect_clean(state.o, "state_o");
        expect_within(got, dtype, want);
        EXPECT_TRUE(state_within(state.o, state.l, state.m, dtype, want));
      }
    }
  }
}

// ---- A single block of queries --------------------------------------------------------------------------------------------------

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

TEST_P(AttentionForm, ASingleBlockOfQueriesIsAPrefillOfOne) {
  for (const SingleQCase& c : kSingleQs) {
    for (tessera_dtype dtype : dtypes()) {
      for (int64_t at : {-4, 20, INT_MAX, INT_MIN, 0}) {
        SCOPED_TRACE(testing::Message() << "case " << &c - kSingleQs << " " << dtype_name(dtype) << " at " << at);
        SingleQCall call(c, dtype);
        if (at != 0) call.offset = ints({at});
        const SingleQ a = call.args();
        const tessera_context ctx = context();
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
