// Bad structure of an indexer's call is refused by name before anything is written, by both backends.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "messages.h"
#include "msa_index.h"

namespace tessera::test {
namespace {

class IndexErrors : public testing::TestWithParam<bool> {
 protected:
  bool selects() const { return GetParam(); }

  using Spoil = std::function<void(tessera_msa_index&, tessera_tensor&)>;

  void refused(tessera_status status, const std::string& message, const Index& call, const Spoil& spoil,
               tessera_context context = {}) {
    SCOPED_TRACE(message);
    for (tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
      context.backend = backend;
      const TestTensor to = selects() ? call.indices_tensor() : call.scores_tensor();
      tessera_tensor result = to;
      tessera_msa_index index = call.index();
      spoil(index, result);
      const tessera_msa_select_args select_args = {index, call.shape.topk, call.shape.local, call.shape.init, result};
      const tessera_msa_block_scores_args scores_args = {index, result};
      EXPECT_EQ(
          selects() ? tessera_msa_select(&select_args, &context) : tessera_msa_block_scores(&scores_args, &context),
          status);
      const std::string got = tessera_last_error();
      EXPECT_EQ(got.rfind(selects() ? "msa_select: " : "msa_block_scores: ", 0), 0u) << got;
      EXPECT_NE(got.find(message), std::string::npos) << got;
      EXPECT_TRUE(to.untouched());
    }
  }
  void invalid(const std::string& message, const Index& call, const Spoil& spoil) {
    refused(TESSERA_INVALID_ARGUMENT, message, call, spoil);
  }

  Index batch{{.requests = 2, .offset = cases::Offset::kPerRequest}, TESSERA_F32};
  Index packed{{.requests = 2, .packed_q = true, .keys_form = Form::kPacked}, TESSERA_F32};
  Index paged{{.requests = 2, .packed_q = true, .keys_form = Form::kPaged}, TESSERA_F32};
  Index units{{.requests = 2, .packed_q = true, .keys_form = Form::kPackedLayout}, TESSERA_BF16};
};
INSTANTIATE_TEST_SUITE_P(MsaIndex, IndexErrors, testing::Bool(),
                         [](const auto& test) { return test.param ? "select" : "scores"; });

using Args = tessera_msa_index;
using Result = tessera_tensor;

TEST_P(IndexErrors, RowsAndKeys) {
  invalid("q [B, Sq, Hi, D] or [total_q, Hi, D] is missing", batch, [](Args& a, Result&) { a.q = {}; });
  invalid("k [B, Sk", batch, [](Args& a, Result&) { a.k = {}; });
  invalid("q has 2 axes", batch, [](Args& a, Result&) { a.q.ndim = 2; });
  invalid("k has 3 axes", batch, [](Args& a, Result&) { a.k.ndim = 3; });
  invalid("k has 4 axes", packed, [](Args& a, Result&) { a.k.ndim = 4; });
  invalid("k has 3 axes", paged, [](Args& a, Result&) { a.k.ndim = 3; });
  invalid("k [3, 150, 1, 16] has size 3 in axis 0", batch, [](Args& a, Result&) { a.k.shape[0] = 3; });
  invalid("D of q", batch, [](Args& a, Result&) { a.k.shape[3] = 8; });
  invalid("k has 2 heads and q has 4; expected 1", batch, [](Args& a, Result&) { a.k.shape[2] = 2; });
  invalid("k has 0 heads", batch, [](Args& a, Result&) { a.k.shape[2] = 0; });
  invalid("q has no heads", batch, [](Args& a, Result&) { a.q.shape[2] = 0; });
  invalid("feature", batch, [](Args& a, Result&) { a.q.shape[3] = a.k.shape[3] = 0; });
  invalid("q has stride 2", batch, [](Args& a, Result&) { a.q.stride[3] = 2; });
  invalid("k axis 1 has negative stride", batch, [](Args& a, Result&) { a.k.stride[1] = -16; });
  invalid("block_size is -1", batch, [](Args& a, Result&) { a.block_size = -1; });
  refused(TESSERA_TYPE_ERROR, "q is int32", batch, [](Args& a, Result&) { a.q.dtype = TESSERA_I32; });
  refused(TESSERA_TYPE_ERROR, "k is bfloat16", batch, [](Args& a, Result&) { a.k.dtype = TESSERA_BF16; });
  refused(TESSERA_NOT_IMPLEMENTED, "head dims above 8192", batch,
          [](Args& a, Result&) { a.q.shape[3] = a.k.shape[3] = 8193; });
}

TEST_P(IndexErrors, PackedLayout) {
  invalid("k [24, 1, 7, 16, 2] has size 7 in axis 2; expected 8 (ceil(D/e), D of q)", units,
          [](Args& a, Result&) { a.k.shape[2] = 7; });
  invalid("k [24, 1, 8, 16, 1] has size 1 in axis 4; expected 2 (e, the elements in 4 bytes)", units,
          [](Args& a, Result&) { a.k.shape[4] = 1; });
  invalid("k has stride 4 in axis 3; its last two axes are dense (stride 2)", units,
          [](Args& a, Result&) { a.k.stride[3] = 4; });
  invalid("k has stride 2 in its last axis", units, [](Args& a, Result&) { a.k.stride[4] = 2; });
  invalid("k has 2 heads and q has 4", units, [](Args& a, Result&) { a.k.shape[1] = 2; });
  invalid("k has 5 axes; expected [B, Sk, Hkv, D]", batch, [](Args& a, Result&) { a.k.ndim = 5; });
}

TEST_P(IndexErrors, Sequences) {
  invalid("cu_seqlens_q is for packed rows", batch, [&](Args& a, Result&) { a.sequences.cu_seqlens_q = packed.cu_q; });
  invalid("cu_seqlens_q is missing", packed, [](Args& a, Result&) { a.sequences.cu_seqlens_q = {}; });
  invalid("exclude each other", packed, [](Args& a, Result&) { a.sequences.seqlen_q = 2; });
  invalid("not a multiple of seqlen_q 7", packed, [](Args& a, Result&) {
    a.sequences.cu_seqlens_q = {};
    a.sequences.seqlen_q = 7;
  });
  invalid("expected 3 (B + 1)", packed, [](Args& a, Result&) { a.sequences.cu_seqlens_k.shape[0] = 2; });
  invalid("k has 3 axes", packed, [](Args& a, Result&) { a.sequences.cu_seqlens_k = {}; });
  invalid("cu_seqlens_k is for packed keys", paged, [&](Args& a, Result&) { a.sequences.cu_seqlens_k = packed.cu_k; });
  invalid("seqused_k [B] is missing", paged, [](Args& a, Result&) { a.sequences.seqused_k = {}; });
  invalid("page_table [B, max_pages] is missing", paged, [](Args& a, Result&) { a.sequences.page_table = {}; });
  invalid("page_table", paged, [](Args& a, Result&) { a.sequences.page_table.shape[0] = 1; });
  invalid("q_offset", batch, [](Args& a, Result&) { a.sequences.q_offset.shape[0] = 3; });
  refused(TESSERA_TYPE_ERROR, "page_table is float32", paged,
          [](Args& a, Result&) { a.sequences.page_table.dtype = TESSERA_F32; });
  refused(TESSERA_TYPE_ERROR, "q_offset is float32", batch,
          [](Args& a, Result&) { a.sequences.q_offset.dtype = TESSERA_F32; });
}

TEST_P(IndexErrors, Results) {
  const std::string name = selects() ? "indices" : "scores";
  const tessera_dtype other = selects() ? TESSERA_F32 : TESSERA_I32;
  refused(TESSERA_TYPE_ERROR, name + " is", batch, [=](Args&, Result& r) { r.dtype = other; });
  invalid(name + " [B, Hi, Sq", batch, [](Args&, Result& r) { r = {}; });
  invalid(name + " has 3 axes", batch, [](Args&, Result& r) { r.ndim = 3; });
  invalid(name + " has 4 axes", packed, [](Args&, Result& r) { r.ndim = 4; });
  for (int axis = 0; axis < 3; ++axis) invalid(name, batch, [=](Args&, Result& r) { ++r.shape[axis]; });
  invalid("one for all heads", batch, [](Args& a, Result&) { a.reduce_heads = 1; });
  invalid(name + " overlaps itself", batch, [](Args&, Result& r) { r.stride[3] = 0; });
  invalid(name + " overlaps q", batch, [](Args& a, Result& r) { a.q.data = r.data; });
  invalid(name + " overlaps k", batch, [](Args& a, Result& r) { a.k.data = r.data; });
  invalid(name + " overlaps q_offset", batch, [](Args& a, Result& r) { a.sequences.q_offset.data = r.data; });
  invalid(name + " overlaps cu_seqlens_q", packed, [](Args& a, Result& r) { a.sequences.cu_seqlens_q.data = r.data; });
  invalid(name + " overlaps cu_seqlens_k", packed, [](Args& a, Result& r) { a.sequences.cu_seqlens_k.data = r.data; });
  invalid(name + " overlaps page_table", paged, [](Args& a, Result& r) { a.sequences.page_table.data = r.data; });
  invalid(name + " overlaps seqused_k", paged, [](Args& a, Result& r) { a.sequences.seqused_k.data = r.data; });
}

TEST_P(IndexErrors, Calls) {
  tessera_context context = {};
  context.variant = "avx7";
  refused(
      TESSERA_INVALID_ARGUMENT, "avx7", batch, [](Args&, Result&) {}, context);
  size_t bytes = 0;
  if (selects()) {
    EXPECT_EQ(tessera_msa_select(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(tessera_msa_select_workspace_size(nullptr, nullptr, &bytes), TESSERA_INVALID_ARGUMENT);
  } else {
    EXPECT_EQ(tessera_msa_block_scores(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(tessera_msa_block_scores_workspace_size(nullptr, nullptr, &bytes), TESSERA_INVALID_ARGUMENT);
  }
}

TEST(IndexRules, NameWhatDoesNotFit) {
  const Index call({.topk = 4}, TESSERA_F32);
  const auto refused = [&](const std::string& message, int64_t topk, int64_t local, int64_t init) {
    const TestTensor to = call.indices_tensor();
    const tessera_msa_select_args args = {call.index(), topk, local, init, to};
    EXPECT_EQ(tessera_msa_select(&args, nullptr), TESSERA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tessera_last_error()).find(message), std::string::npos) << tessera_last_error();
    EXPECT_TRUE(to.untouched());
  };
  refused("topk is 0", 0, 0, 0);
  refused("topk is -3", -3, 0, 0);
  refused("local_blocks is -1", 4, -1, 0);
  refused("init_blocks is -1", 4, 0, -1);
  refused("local_blocks 3 and init_blocks 2 are more than topk 4", 4, 3, 2);
  refused("more than topk", 4, INT64_MAX, INT64_MAX);
  refused("expected 5 (topk)", 5, 1, 0);
}

}  // namespace
}  // namespace tessera::test
