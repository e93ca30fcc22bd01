// Bad structure of QSA's calls is refused by name before anything is written, by both backends.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "qsa_index.h"
#include "qsa_mqa.h"
#include "refused.h"

namespace tessera::test {
namespace {

// Both operators that take a tessera_qsa_index.
class QsaIndexErrors : public testing::TestWithParam<bool> {
 protected:
  using Spoil = std::function<void(tessera_qsa_index&, tessera_tensor&)>;

  bool selects() const { return GetParam(); }

  void refuse(tessera_status status, const QsaIndex& call, const std::string& argument, const std::string& text,
              const Spoil& spoil) {
    if (selects()) {
      const TestTensor ids = call.indices_tensor(), tokens = call.tokens_tensor();
      refused<tessera_qsa_select_args>("qsa_select", tessera_qsa_select, call.select_args(ids, tokens), {ids, tokens},
                                       status, argument, text, [&](auto& a) { spoil(a.index, a.indices); });
    } else {
      const TestTensor to = call.scores_tensor();
      refused<tessera_qsa_indexer_mqa_score_args>("qsa_indexer_mqa_score", tessera_qsa_indexer_mqa_score,
                                                  call.scores_args(to), {to}, status, argument, text,
                                                  [&](auto& a) { spoil(a.index, a.scores); });
    }
  }
  void invalid(const QsaIndex& call, const std::string& argument, const std::string& text, const Spoil& spoil) {
    refuse(TESSERA_INVALID_ARGUMENT, call, argument, text, spoil);
  }
  void mistyped(const QsaIndex& call, const std::string& argument, const Spoil& spoil) {
    refuse(TESSERA_TYPE_ERROR, call, argument, "expected", spoil);
  }

  QsaIndex batch{{.requests = 2, .keys_of = {40, 30}, .weights = true, .lens_q = true}, TESSERA_F32};
  QsaIndex packed{{.requests = 2, .rows = Rows::kBoth, .weights = true}, TESSERA_F32};
  QsaIndex paged{{.requests = 2, .rows = Rows::kPacked, .page_size = 8, .head_axis = true}, TESSERA_F32};
};
INSTANTIATE_TEST_SUITE_P(Qsa, QsaIndexErrors, testing::Bool(),
                         [](const auto& test) { return test.param ? "select" : "scores"; });

using Index = tessera_qsa_index;
using Result = tessera_tensor;

TEST_P(QsaIndexErrors, RowsAndKeys) {
  invalid(batch, "q_idx", "missing", [](Index& a, Result&) { a.q = {}; });
  invalid(batch, "block_keys", "missing", [](Index& a, Result&) { a.k = {}; });
  invalid(batch, "q_idx", "has 2 axes", [](Index& a, Result&) { a.q.ndim = 2; });
  invalid(batch, "block_keys", "has 4 axes", [](Index& a, Result&) { a.k.ndim = 4; });
  invalid(batch, "block_keys", "has 2 axes", [](Index& a, Result&) { a.k.ndim = 2; });
  invalid(paged, "block_keys", "has 2 axes", [](Index& a, Result&) { a.k.ndim = 2; });
  invalid(paged, "block_keys", "axis 2", [](Index& a, Result&) { a.k.shape[2] = 2; });
  invalid(batch, "q_idx", "axis 0", [](Index& a, Result&) { a.k.shape[0] = 1; });
  invalid(batch, "block_keys", "D of q_idx", [](Index& a, Result&) { a.k.shape[2] = 8; });
  invalid(batch, "q_idx", "no heads", [](Index& a, Result&) { a.q.shape[2] = 0; });
  invalid(batch, "q_idx", "feature", [](Index& a, Result&) { a.q.shape[3] = a.k.shape[2] = 0; });
  invalid(batch, "q_idx", "stride 2", [](Index& a, Result&) { a.q.stride[3] = 2; });
  invalid(batch, "block_keys", "stride 2", [](Index& a, Result&) { a.k.stride[2] = 2; });
  invalid(batch, "block_keys", "negative stride", [](Index& a, Result&) { a.k.stride[1] = -16; });
  invalid(batch, "q_idx", "aligned", [](Index& a, Result&) { a.q.data = static_cast<char*>(a.q.data) - 1; });
  invalid(batch, "block_size", "is -1", [](Index& a, Result&) { a.block_size = -1; });
  mistyped(batch, "q_idx", [](Index& a, Result&) { a.q.dtype = TESSERA_I32; });
  refuse(TESSERA_TYPE_ERROR, batch, "block_keys", "bfloat16", [](Index& a, Result&) { a.k.dtype = TESSERA_BF16; });
  refuse(TESSERA_NOT_IMPLEMENTED, batch, "q_idx", "8192",
         [](Index& a, Result&) { a.q.shape[3] = a.k.shape[2] = 8193; });
}

TEST_P(QsaIndexErrors, ScaleAndWeights) {
  for (const float bad : {0.0f, -1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    invalid(batch, "scale", "expected", [&](Index& a, Result&) { a.scale = &bad; });
  }
  invalid(batch, "weights", "axes", [](Index& a, Result&) { a.weights.ndim = 2; });
  invalid(packed, "weights", "axes", [](Index& a, Result&) { a.weights.ndim = 3; });
  for (int axis = 0; axis < 3; ++axis) {
    invalid(batch, "weights", "axis " + std::to_string(axis), [=](Index& a, Result&) { ++a.weights.shape[axis]; });
  }
  mistyped(batch, "weights", [](Index& a, Result&) { a.weights.dtype = TESSERA_BF16; });
}

TEST_P(QsaIndexErrors, Requests) {
  invalid(batch, "cu_seqlens_q", "packed rows", [&](Index& a, Result&) { a.cu_seqlens_q = packed.cu_q; });
  invalid(batch, "token_to_req", "packed rows", [&](Index& a, Result&) { a.token_to_req = packed.to_request; });
  invalid(packed, "cu_seqlens_q", "missing", [](Index& a, Result&) { a.cu_seqlens_q = a.token_to_req = {}; });
  invalid(packed, "cu_seqlens_q", "B + 1", [](Index& a, Result&) { ++a.cu_seqlens_q.shape[0]; });
  invalid(packed, "token_to_req", "axis 0", [](Index& a, Result&) { --a.token_to_req.shape[0]; });
  invalid(batch, "seq_lens_q", "axis 0", [](Index& a, Result&) { a.seq_lens_q.shape[0] = 1; });
  invalid(batch, "seq_lens_k", "axis 0", [](Index& a, Result&) { a.seq_lens_k.shape[0] = 3; });
  invalid(batch, "query_positions", "axes", [](Index& a, Result&) { a.query_positions.ndim = 1; });
  invalid(packed, "query_positions", "axes", [](Index& a, Result&) { a.query_positions.ndim = 2; });
  invalid(batch, "query_positions", "axis 1", [](Index& a, Result&) { --a.query_positions.shape[1]; });
  invalid(paged, "block_table", "axes", [](Index& a, Result&) { a.page_table.ndim = 1; });
  invalid(paged, "cu_seqlens_q", "axis 0", [](Index& a, Result&) { a.page_table.shape[0] = 1; });
  mistyped(packed, "cu_seqlens_q", [](Index& a, Result&) { a.cu_seqlens_q.dtype = TESSERA_F32; });
  mistyped(packed, "token_to_req", [](Index& a, Result&) { a.token_to_req.dtype = TESSERA_F32; });
  mistyped(batch, "query_positions", [](Index& a, Result&) { a.query_positions.dtype = TESSERA_F32; });
  mistyped(batch, "seq_lens_q", [](Index& a, Result&) { a.seq_lens_q.dtype = TESSERA_F32; });
  mistyped(batch, "seq_lens_k", [](Index& a, Result&) { a.seq_lens_k.dtype = TESSERA_F32; });
  mistyped(paged, "block_table", [](Index& a, Result&) { a.page_table.dtype = TESSERA_F32; });
}

TEST_P(QsaIndexErrors, Results) {
  const std::string name = selects() ? "indices" : "scores";
  mistyped(batch, name, [&](Index&, Result& r) { r.dtype = selects() ? TESSERA_F32 : TESSERA_I32; });
  if (!selects()) invalid(batch, name, "missing", [](Index&, Result& r) { r = {}; });
  invalid(batch, name, "has 2 axes", [](Index&, Result& r) { r.ndim = 2; });
  invalid(packed, name, "has 3 axes", [](Index&, Result& r) { r.ndim = 3; });
  for (int axis = 0; axis < 2; ++axis) invalid(batch, name, "axis", [=](Index&, Result& r) { ++r.shape[axis]; });
  invalid(batch, name, "overlaps itself", [](Index&, Result& r) { r.stride[2] = 0; });
  invalid(batch, name, "overlaps q_idx", [](Index& a, Result& r) { a.q.data = r.data; });
  invalid(batch, name, "overlaps block_keys", [](Index& a, Result& r) { a.k.data = r.data; });
  invalid(batch, name, "overlaps weights", [](Index& a, Result& r) { a.weights.data = r.data; });
  invalid(batch, name, "overlaps query_positions", [](Index& a, Result& r) { a.query_positions.data = r.data; });
  invalid(batch, name, "overlaps seq_lens_q", [](Index& a, Result& r) { a.seq_lens_q.data = r.data; });
  invalid(batch, name, "overlaps seq_lens_k", [](Index& a, Result& r) { a.seq_lens_k.data = r.data; });
  invalid(packed, name, "overlaps cu_seqlens_q", [](Index& a, Result& r) { a.cu_seqlens_q.data = r.data; });
  invalid(packed, name, "overlaps token_to_req", [](Index& a, Result& r) { a.token_to_req.data = r.data; });
  invalid(paged, name, "overlaps block_table", [](Index& a, Result& r) { a.page_table.data = r.data; });
}

TEST(QsaErrors, OfSelections) {
  const QsaIndex call({.requests = 2}, TESSERA_F32);
  const TestTensor ids = call.indices_tensor(), tokens = call.tokens_tensor();
  using Args = tessera_qsa_select_args;
  const auto invalid = [&](const char* argument, const char* text, const std::function<void(Args&)>& spoil) {
    refused<Args>("qsa_select", tessera_qsa_select, call.select_args(ids, tokens), {ids, tokens},
                  TESSERA_INVALID_ARGUMENT, argument, text, spoil);
  };
  invalid("topk", "is 0", [](Args& a) { a.topk = 0; });
  invalid("topk", "is -3", [](Args& a) { a.topk = -3; });
  invalid("topk", "", [](Args& a) { a.topk = int64_t{1} << 62; });
  invalid("indices", "axis 2", [](Args& a) { --a.indices.shape[2]; });
  invalid("indices", "missing", [](Args& a) { a.indices = a.token_indices = {}; });
  invalid("token_indices", "axis 2", [](Args& a) { --a.token_indices.shape[2]; });
  invalid("token_indices", "axis 0", [](Args& a) { ++a.token_indices.shape[0]; });
  invalid("token_indices", "overlaps indices", [](Args& a) { a.token_indices.data = a.indices.data; });
  invalid("token_indices", "overlaps query_positions",
          [](Args& a) { a.index.query_positions.data = a.token_indices.data; });
  invalid("token_indices", "overlaps itself", [](Args& a) { a.token_indices.stride[1] = 1; });
}

TEST(QsaErrors, OfScreens) {
  const QsaIndex call({.requests = 2}, TESSERA_F32);
  const TestTensor ids = call.indices_tensor();
  const TestTensor codes(TESSERA_I8, {2, 40, 16}), scales(TESSERA_F32, {2, 40});
  using Args = tessera_qsa_select_args;
  const auto refuse = [&](tessera_status status, const char* argument, const char* text,
                          const std::function<void(Args&)>& spoil) {
    Args args = call.select_args(ids);
    args.screen_codes = codes;
    args.screen_scales = scales;
    refused<Args>("qsa_select", tessera_qsa_select, args, {ids}, status, argument, text, spoil);
  };
  const auto wrong = TESSERA_INVALID_ARGUMENT;
  refuse(wrong, "screen_codes", "together", [](Args& a) { a.screen_codes = {}; });
  refuse(wrong, "screen_codes", "together", [](Args& a) { a.screen_scales = {}; });
  refuse(wrong, "screen_codes", "has 2 axes", [](Args& a) { a.screen_codes.ndim = 2; });
  refuse(wrong, "screen_codes", "axis 1", [](Args& a) { --a.screen_codes.shape[1]; });
  refuse(wrong, "screen_codes", "stride", [](Args& a) { a.screen_codes.stride[2] = 2; });
  refuse(wrong, "screen_scales", "axis 0", [](Args& a) { --a.screen_scales.shape[0]; });
  refuse(wrong, "indices", "overlaps screen_scales", [](Args& a) { a.screen_scales.data = a.indices.data; });
  refuse(TESSERA_TYPE_ERROR, "screen_codes", "int8", [](Args& a) { a.screen_codes.dtype = TESSERA_F16; });
  refuse(TESSERA_TYPE_ERROR, "screen_scales", "float32", [](Args& a) { a.screen_scales.dtype = TESSERA_I32; });
  refuse(TESSERA_TYPE_ERROR, "block_keys", "int8", [](Args& a) { a.index.k.dtype = TESSERA_I8; });
}

TEST(QsaErrors, OfScreenKeys) {
  const TestTensor keys(TESSERA_F32, {5, 16}), codes(TESSERA_I8, {5, 16}), scales(TESSERA_F32, {5});
  using Args = tessera_qsa_screen_keys_args;
  const auto refuse = [&](tessera_status status, const char* argument, const char* text,
                          const std::function<void(Args&)>& spoil) {
    refused<Args>("qsa_screen_keys", tessera_qsa_screen_keys, {keys, codes, scales}, {codes, scales}, status, argument,
                  text, spoil);
  };
  const auto wrong = TESSERA_INVALID_ARGUMENT;
  refuse(wrong, "keys", "missing", [](Args& a) { a.keys = {}; });
  refuse(wrong, "keys", "stride", [](Args& a) { a.keys.stride[1] = 2; });
  refuse(wrong, "codes", "axis 0", [](Args& a) { --a.codes.shape[0]; });
  refuse(wrong, "scales", "axis 0", [](Args& a) { --a.scales.shape[0]; });
  refuse(wrong, "codes", "overlaps itself", [](Args& a) { a.codes.stride[0] = 1; });
  refuse(wrong, "scales", "overlaps codes", [](Args& a) { a.scales.data = a.codes.data; });
  refuse(TESSERA_TYPE_ERROR, "keys", "float32", [](Args& a) { a.keys.dtype = TESSERA_I8; });
  refuse(TESSERA_TYPE_ERROR, "codes", "int8", [](Args& a) { a.codes.dtype = TESSERA_I32; });
  refuse(TESSERA_TYPE_ERROR, "scales", "float32", [](Args& a) { a.scales.dtype = TESSERA_BF16; });
}

TEST(QsaErrors, OfIntervals) {
  const Prefill call({.weights = true}, TESSERA_F32);
  const TestTensor to = call.scores_tensor();
  using Args = tessera_qsa_mqa_prefill_args;
  const auto refuse = [&](tessera_status status, const char* argument, const char* text,
                          const std::function<void(Args&)>& spoil) {
    refused<Args>("qsa_mqa_prefill", tessera_qsa_mqa_prefill, call.args(to), {to}, status, argument, text, spoil);
  };
  const auto wrong = TESSERA_INVALID_ARGUMENT;
  refuse(wrong, "q", "has 4 axes", [](Args& a) { a.q.ndim = 4; });
  refuse(wrong, "k", "has 1 axes", [](Args& a) { a.k.ndim = 1; });
  refuse(wrong, "k", "axis 1", [](Args& a) { a.k = {a.k.data, TESSERA_F32, 3, {30, 2, 16}, {32, 16, 1}}; });
  refuse(wrong, "row_starts", "missing", [](Args& a) { a.row_starts = {}; });
  refuse(wrong, "row_ends", "missing", [](Args& a) { a.row_ends = {}; });
  refuse(wrong, "row_starts", "axis 0", [](Args& a) { --a.row_starts.shape[0]; });
  refuse(wrong, "row_ends", "axis 0", [](Args& a) { --a.row_ends.shape[0]; });
  refuse(wrong, "weights", "axis 1", [](Args& a) { ++a.weights.shape[1]; });
  refuse(wrong, "scores", "missing", [](Args& a) { a.scores = {}; });
  refuse(wrong, "scores", "keys of k", [](Args& a) { --a.scores.shape[1]; });
  refuse(wrong, "scores", "rows of q", [](Args& a) { --a.scores.shape[0]; });
  refuse(wrong, "scores", "overlaps row_ends", [](Args& a) { a.row_ends.data = a.scores.data; });
  refuse(TESSERA_TYPE_ERROR, "row_starts", "int32", [](Args& a) { a.row_starts.dtype = TESSERA_F32; });
  refuse(TESSERA_TYPE_ERROR, "scores", "float32", [](Args& a) { a.scores.dtype = TESSERA_I32; });
}

TEST(QsaErrors, OfCounts) {
  const Decode call({.rows = 2}, TESSERA_F32);
  const TestTensor to = call.scores_tensor();
  using Args = tessera_qsa_mqa_decode_args;
  const auto refuse = [&](tessera_status status, const char* argument, const char* text,
                          const std::function<void(Args&)>& spoil) {
    refused<Args>("qsa_mqa_decode", tessera_qsa_mqa_decode, call.args(to), {to}, status, argument, text, spoil);
  };
  const auto wrong = TESSERA_INVALID_ARGUMENT;
  refuse(wrong, "q", "has 2 axes", [](Args& a) { a.q.ndim = 2; });
  refuse(wrong, "k_cache", "has 2 axes", [](Args& a) { a.k_cache.ndim = 2; });
  refuse(wrong, "page_table", "missing", [](Args& a) { a.page_table = {}; });
  refuse(wrong, "page_table", "axis 0", [](Args& a) { --a.page_table.shape[0]; });
  refuse(wrong, "context_lens", "missing", [](Args& a) { a.context_lens = {}; });
  refuse(wrong, "context_lens", "axis 0", [](Args& a) { --a.context_lens.shape[0]; });
  refuse(wrong, "scores", "axis 0", [](Args& a) { --a.scores.shape[0]; });
  refuse(wrong, "scores", "overlaps k_cache", [](Args& a) { a.k_cache.data = a.scores.data; });
  refuse(wrong, "scores", "overlaps itself", [](Args& a) { a.scores.stride[0] = 1; });
  refuse(TESSERA_TYPE_ERROR, "context_lens", "int32", [](Args& a) { a.context_lens.dtype = TESSERA_F32; });
  refuse(TESSERA_TYPE_ERROR, "k_cache", "float16", [](Args& a) { a.k_cache.dtype = TESSERA_F16; });
}

TEST(QsaErrors, OfCalls) {
  size_t bytes = 0;
  EXPECT_EQ(tessera_qsa_select(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_qsa_indexer_mqa_score(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_qsa_mqa_prefill(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_qsa_mqa_decode_workspace_size(nullptr, nullptr, &bytes), TESSERA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tessera::test
