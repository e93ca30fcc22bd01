// The same attention by way of other operators: batches of equal requests, and paged keys under shared lists, with their
// states.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "msa_attention.h"

namespace tessera::test {
namespace {

using cases::Ids;
using cases::Layout;

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

}  // namespace
}  // namespace tessera::test
