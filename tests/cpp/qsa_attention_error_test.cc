// Bad structure of calls of QSA's attention is refused by name before anything is written, by both backends.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "qsa_attention.h"
#include "refused.h"

namespace tessera::test {
namespace {

using Spoil = std::function<void(TokenArgs&)>;

class TokenErrors : public testing::Test {
 protected:
  static void refuse(tessera_status status, const TokenAttn& call, const std::string& argument, const std::string& text,
                     const Spoil& spoil) {
    const Output to = call.output();
    refused<TokenArgs>("qsa_sparse_attention", tessera_qsa_sparse_attention, call.args_into(to), {to.out, to.lse},
                       status, argument, text, spoil);
  }
  static void invalid(const TokenAttn& call, const std::string& argument, const std::string& text, const Spoil& spoil) {
    refuse(TESSERA_INVALID_ARGUMENT, call, argument, text, spoil);
  }
  static void mistyped(const TokenAttn& call, const std::string& argument, const Spoil& spoil) {
    refuse(TESSERA_TYPE_ERROR, call, argument, "expected", spoil);
  }

  TokenAttn batch{
      {.requests = 2, .keys_of = {150, 90}, .positions = Positions::kLast, .lens_q = true, .gate = Gate::kFeatures},
      TESSERA_F32};
  TokenAttn packed{{.requests = 2, .rows = Rows::kBoth, .form = TokenForm::kPacked, .positions = Positions::kLast},
                   TESSERA_F32};
  TokenAttn paged{{.requests = 2, .rows = Rows::kPacked, .form = TokenForm::kPaged, .gate = Gate::kHeads}, TESSERA_F32};
  TokenAttn physical{{.rows = Rows::kLone, .form = TokenForm::kPhysical}, TESSERA_F32};
};

TEST_F(TokenErrors, RowsAndKeys) {
  for (const TokenAttn* call : {&batch, &packed, &paged, &physical}) {
    invalid(*call, "query", "missing", [](TokenArgs& a) { a.q = {}; });
    invalid(*call, "key", "missing", [](TokenArgs& a) { a.k = {}; });
    invalid(*call, "value", "missing", [](TokenArgs& a) { a.v = {}; });
    invalid(*call, "query", "has 2 axes", [](TokenArgs& a) { a.q.ndim = 2; });
    invalid(*call, "key", "has 2 axes", [](TokenArgs& a) { a.k.ndim = 2; });
    invalid(*call, "value", "has 5 axes", [](TokenArgs& a) { a.v.ndim = 5; });
    invalid(*call, "key", "D of query", [](TokenArgs& a) { --a.k.shape[a.k.ndim - 1]; });
    invalid(*call, "value", "as key", [](TokenArgs& a) { --a.v.shape[0]; });
    invalid(*call, "value", "as key", [](TokenArgs& a) { --a.v.shape[a.v.ndim - 2]; });
    invalid(*call, "query", "multiple", [](TokenArgs& a) { a.k.shape[a.k.ndim - 2] = a.v.shape[a.k.ndim - 2] = 4; });
    invalid(*call, "query", "multiple", [](TokenArgs& a) { a.q.shape[a.q.ndim - 2] = 0; });
    invalid(*call, "key", "stride 2", [](TokenArgs& a) { a.k.stride[a.k.ndim - 1] = 2; });
    invalid(*call, "value", "stride 2", [](TokenArgs& a) { a.v.stride[a.v.ndim - 1] = 2; });
    invalid(*call, "query", "stride 2", [](TokenArgs& a) { a.q.stride[a.q.ndim - 1] = 2; });
    invalid(*call, "key", "negative stride", [](TokenArgs& a) { a.k.stride[0] = -16; });
    invalid(*call, "key", "aligned", [](TokenArgs& a) { a.k.data = static_cast<char*>(a.k.data) - 1; });
    mistyped(*call, "query", [](TokenArgs& a) { a.q.dtype = TESSERA_I32; });
    refuse(TESSERA_TYPE_ERROR, *call, "key", "bfloat16", [](TokenArgs& a) { a.k.dtype = TESSERA_BF16; });
    refuse(TESSERA_TYPE_ERROR, *call, "value", "float16", [](TokenArgs& a) { a.v.dtype = TESSERA_F16; });
  }
  invalid(batch, "query", "B of key", [](TokenArgs& a) { --a.k.shape[0], --a.v.shape[0]; });
  invalid(batch, "query", "feature", [](TokenArgs& a) { a.q.shape[3] = a.k.shape[3] = 0; });
  invalid(batch, "value", "feature", [](TokenArgs& a) { a.v.shape[3] = 0; });
  refuse(TESSERA_NOT_IMPLEMENTED, batch, "query", "8193", [](TokenArgs& a) { a.q.shape[3] = a.k.shape[3] = 8193; });
  refuse(TESSERA_NOT_IMPLEMENTED, batch, "value", "8193", [](TokenArgs& a) { a.v.shape[3] = 8193; });
}

TEST_F(TokenErrors, Lists) {
  for (const TokenAttn* call : {&batch, &packed, &paged}) {
    const int rows = call->q.view().ndim - 2;
    invalid(*call, "token_indices", "missing", [](TokenArgs& a) { a.token_indices = {}; });
    invalid(*call, "token_indices", "axes", [](TokenArgs& a) { --a.token_indices.ndim; });
    for (int axis = 0; axis < rows; ++axis) {
      invalid(*call, "token_indices", "as query", [=](TokenArgs& a) { --a.token_indices.shape[axis]; });
    }
    mistyped(*call, "token_indices", [](TokenArgs& a) { a.token_indices.dtype = TESSERA_F32; });
  }
  invalid(physical, "selected_kv_indices", "axes", [](TokenArgs& a) { --a.selected_kv_indices.ndim; });
  invalid(physical, "selected_kv_indices", "as query", [](TokenArgs& a) { --a.selected_kv_indices.shape[0]; });
  mistyped(physical, "selected_kv_indices", [](TokenArgs& a) { a.selected_kv_indices.dtype = TESSERA_BF16; });
}

TEST_F(TokenErrors, Options) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    invalid(batch, "scale", "finite", [&](TokenArgs& a) { a.softmax_scale = &bad; });
  }
  invalid(batch, "num_splits", "is -1", [](TokenArgs& a) { a.num_splits = -1; });
  invalid(batch, "gate", "axes", [](TokenArgs& a) { a.gate.ndim = 2; });
  for (int axis = 0; axis < 4; ++axis) {
    invalid(batch, "gate", "axis " + std::to_string(axis), [=](TokenArgs& a) { ++a.gate.shape[axis]; });
  }
  for (int axis = 0; axis < 2; ++axis) {
    invalid(paged, "gate", "axis " + std::to_string(axis), [=](TokenArgs& a) { ++a.gate.shape[axis]; });
  }
  mistyped(batch, "gate", [](TokenArgs& a) { a.gate.dtype = TESSERA_BF16; });
}

TEST_F(TokenErrors, Requests) {
  invalid(batch, "cu_seqlens_q", "packed rows", [&](TokenArgs& a) { a.cu_seqlens_q = packed.cu_q; });
  invalid(batch, "token_to_req", "packed rows", [&](TokenArgs& a) { a.token_to_req = packed.to_request; });
  invalid(packed, "cu_seqlens_q", "missing", [](TokenArgs& a) { a.cu_seqlens_q = a.token_to_req = {}; });
  invalid(packed, "cu_seqlens_q", "B + 1", [](TokenArgs& a) { ++a.cu_seqlens_q.shape[0]; });
  invalid(packed, "token_to_req", "total_q", [](TokenArgs& a) { --a.token_to_req.shape[0]; });
  invalid(packed, "cu_seqlens_k", "empty", [](TokenArgs& a) { a.cu_seqlens_k.shape[0] = 0; });
  invalid(packed, "cu_seqlens_k", "axes", [](TokenArgs& a) { a.cu_seqlens_k.ndim = 2; });
  invalid(paged, "cu_seqlens_k", "block_table", [&](TokenArgs& a) { a.cu_seqlens_k = packed.cu_k; });
  invalid(batch, "seq_lens_q", "axis 0", [](TokenArgs& a) { a.seq_lens_q.shape[0] = 1; });
  invalid(batch, "seq_lens_k", "axis 0", [](TokenArgs& a) { a.seq_lens_k.shape[0] = 3; });
  invalid(batch, "query_positions", "axes", [](TokenArgs& a) { a.query_positions.ndim = 1; });
  invalid(packed, "query_positions", "axes", [](TokenArgs& a) { a.query_positions.ndim = 2; });
  invalid(batch, "query_positions", "axis 1", [](TokenArgs& a) { --a.query_positions.shape[1]; });
  invalid(paged, "block_table", "axes", [](TokenArgs& a) { a.page_table.ndim = 1; });
  invalid(paged, "cu_seqlens_q", "axis 0", [](TokenArgs& a) { a.page_table.shape[0] = 1; });
  mistyped(packed, "cu_seqlens_q", [](TokenArgs& a) { a.cu_seqlens_q.dtype = TESSERA_F32; });
  mistyped(packed, "cu_seqlens_k", [](TokenArgs& a) { a.cu_seqlens_k.dtype = TESSERA_F32; });
  mistyped(packed, "token_to_req", [](TokenArgs& a) { a.token_to_req.dtype = TESSERA_F32; });
  mistyped(batch, "query_positions", [](TokenArgs& a) { a.query_positions.dtype = TESSERA_F32; });
  mistyped(batch, "seq_lens_q", [](TokenArgs& a) { a.seq_lens_q.dtype = TESSERA_F32; });
  mistyped(batch, "seq_lens_k", [](TokenArgs& a) { a.seq_lens_k.dtype = TESSERA_F32; });
  mistyped(paged, "block_table", [](TokenArgs& a) { a.page_table.dtype = TESSERA_F32; });
}

TEST_F(TokenErrors, SlotsStandAlone) {
  const TestTensor some = ints({0, 1, 2, 3, 4});
  invalid(physical, "token_indices", "exclude", [&](TokenArgs& a) { a.token_indices = some; });
  invalid(physical, "cu_seqlens_q", "exclude", [&](TokenArgs& a) { a.cu_seqlens_q = some; });
  invalid(physical, "token_to_req", "exclude", [&](TokenArgs& a) { a.token_to_req = some; });
  invalid(physical, "query_positions", "exclude", [&](TokenArgs& a) { a.query_positions = some; });
  invalid(physical, "seq_lens_q", "exclude", [&](TokenArgs& a) { a.seq_lens_q = some; });
  invalid(physical, "seq_lens_k", "exclude", [&](TokenArgs& a) { a.seq_lens_k = some; });
  invalid(physical, "cu_seqlens_k", "exclude", [&](TokenArgs& a) { a.cu_seqlens_k = some; });
  invalid(physical, "block_table", "exclude", [&](TokenArgs& a) { a.page_table = some; });
  invalid(physical, "gate", "exclude", [&](TokenArgs& a) { a.gate = some; });
  invalid(physical, "query", "packed rows", [](TokenArgs& a) {
    a.q = view_of(a.q, {1, a.q.shape[0], a.q.shape[1], a.q.shape[2]}, {0, a.q.stride[0], a.q.stride[1], 1});
  });
}

TEST_F(TokenErrors, Results) {
  for (const TokenAttn* call : {&batch, &packed, &paged, &physical}) {
    invalid(*call, "out", "missing", [](TokenArgs& a) { a.out = {}; });
    invalid(*call, "out", "axes", [](TokenArgs& a) { --a.out.ndim; });
    invalid(*call, "lse", "axes", [](TokenArgs& a) { --a.lse.ndim; });
    invalid(*call, "out", "as query", [](TokenArgs& a) { ++a.out.shape[0]; });
    invalid(*call, "out", "Dv of value", [](TokenArgs& a) { ++a.out.shape[a.out.ndim - 1]; });
    invalid(*call, "lse", "as query", [](TokenArgs& a) { ++a.lse.shape[a.lse.ndim - 1]; });
    invalid(*call, "out", "stride 2", [](TokenArgs& a) { a.out.stride[a.out.ndim - 1] = 2; });
    invalid(*call, "out", "overlaps itself", [](TokenArgs& a) { a.out.stride[0] = 0; });
    invalid(*call, "lse", "overlaps itself", [](TokenArgs& a) { a.lse.stride[0] = 1; });
    mistyped(*call, "out", [](TokenArgs& a) { a.out.dtype = TESSERA_BF16; });
    mistyped(*call, "lse", [](TokenArgs& a) { a.lse.dtype = TESSERA_BF16; });
    invalid(*call, "lse", "overlaps out", [](TokenArgs& a) { a.lse.data = a.out.data; });
  }
}

TEST_F(TokenErrors, ResultsOverlapNoInput) {
  const struct {
    const TokenAttn& call;
    const char* name;
    tessera_tensor TokenArgs::*input;
  } inputs[] = {{batch, "query", &TokenArgs::q},
                {batch, "key", &TokenArgs::k},
                {batch, "value", &TokenArgs::v},
                {batch, "token_indices", &TokenArgs::token_indices},
                {batch, "query_positions", &TokenArgs::query_positions},
                {batch, "seq_lens_q", &TokenArgs::seq_lens_q},
                {batch, "seq_lens_k", &TokenArgs::seq_lens_k},
                {batch, "gate", &TokenArgs::gate},
                {packed, "cu_seqlens_q", &TokenArgs::cu_seqlens_q},
                {packed, "cu_seqlens_k", &TokenArgs::cu_seqlens_k},
                {packed, "token_to_req", &TokenArgs::token_to_req},
                {paged, "block_table", &TokenArgs::page_table},
                {paged, "gate", &TokenArgs::gate},
                {physical, "selected_kv_indices", &TokenArgs::selected_kv_indices}};
  for (const auto& [call, name, input] : inputs) {
    const std::string text = std::string("overlaps ") + name;
    const auto field = input;
    // Results are smaller than a guard page: they reach into no other tensor, as keys might.
    invalid(call, "out", text, [field](TokenArgs& a) { a.out.data = (a.*field).data; });
    invalid(call, "lse", text, [field](TokenArgs& a) { a.lse.data = (a.*field).data; });
  }
}

TEST(TokenCalls, NeedArguments) {
  size_t bytes = 0;
  EXPECT_EQ(tessera_qsa_sparse_attention(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_qsa_sparse_attention_workspace_size(nullptr, nullptr, &bytes), TESSERA_INVALID_ARGUMENT);
}

TEST(TokenCalls, Explain) {
  const TokenAttn call({.queries = 1, .keys = 900, .width = 800, .count = 700, .lists = Lists::kPacked}, TESSERA_BF16);
  const Output to = call.output();
  const TokenArgs args = call.args_into(to);
  char text[2000];
  const tessera_context with = with_variant("scalar");
  ASSERT_EQ(tessera_qsa_sparse_attention_explain(&args, &with, text, sizeof text), TESSERA_OK) << tessera_last_error();
  for (const char* fact : {"variant: scalar", "700 tokens", "2 chunks", "KV heads", "workspace: "}) {
    EXPECT_NE(std::string(text).find(fact), std::string::npos) << text;
  }
  EXPECT_TRUE(to.out.untouched());
}

}  // namespace
}  // namespace tessera::test
