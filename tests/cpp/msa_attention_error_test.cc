// Bad structure of a packed, paged or single-block call is refused by name before anything is written, by both backends.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "messages.h"
#include "msa_attention.h"

namespace tessera::test {
namespace {

constexpr auto kInvalid = TESSERA_INVALID_ARGUMENT;
constexpr auto kType = TESSERA_TYPE_ERROR;

// The last call failed so, and its message names the operator and the argument.
void expect_complaint(tessera_status got, tessera_status want, const std::string& op, const std::string& argument) {
  const std::string message = tessera_last_error();
  EXPECT_EQ(got, want) << message;
  EXPECT_EQ(message.rfind(op + ": ", 0), 0u) << message;
  EXPECT_TRUE(names(message, argument)) << "does not name " << argument << ": " << message;
}

class MsaErrors : public testing::Test {
 protected:
  using Spoil = std::function<void(MsaArgs&)>;

  static void refused(const Msa& call, tessera_status status, const char* argument, const Spoil& spoil,
                      tessera_context context = {}) {
    SCOPED_TRACE(argument);
    for (tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
      context.backend = backend;
      const Output to = call.output();
      MsaArgs a = call.args_into(to);
      spoil(a);
      expect_complaint(tessera_msa_sparse_attention(&a, &context), status, "msa_sparse_attention", argument);
      EXPECT_TRUE(to.out.untouched() && to.lse.untouched());
    }
  }
  void both_refused(tessera_status status, const char* argument, const Spoil& spoil) const {
    refused(packed, status, argument, spoil);
    refused(paged, status, argument, spoil);
  }

  const Msa packed = make_msa({.rows = {5, 3}, .keys = {50, 20}, .offset = cases::Offset::kPerRequest}, TESSERA_BF16);
  const Msa paged =
      make_msa({.rows = {5, 3}, .keys = {50, 20}, .page = 8, .offset = cases::Offset::kPerRequest}, TESSERA_BF16);
};

struct NamedField {
  const char* name;
  std::function<tessera_tensor&(MsaArgs&)> of;
};
const NamedField kShared[] = {
    {"q", [](MsaArgs& a) -> tessera_tensor& { return a.q; }},
    {"k", [](MsaArgs& a) -> tessera_tensor& { return a.k; }},
    {"v", [](MsaArgs& a) -> tessera_tensor& { return a.v; }},
    {"q2k_indices", [](MsaArgs& a) -> tessera_tensor& { return a.q2k_indices; }},
    {"cu_seqlens_q", [](MsaArgs& a) -> tessera_tensor& { return a.sequences.cu_seqlens_q; }},
    {"q_offset", [](MsaArgs& a) -> tessera_tensor& { return a.sequences.q_offset; }},
    {"out", [](MsaArgs& a) -> tessera_tensor& { return a.out; }},
    {"lse", [](MsaArgs& a) -> tessera_tensor& { return a.lse; }},
};
const NamedField kPackedOnly[] = {
    {"cu_seqlens_k", [](MsaArgs& a) -> tessera_tensor& { return a.sequences.cu_seqlens_k; }}};
const NamedField kPagedOnly[] = {
    {"page_table", [](MsaArgs& a) -> tessera_tensor& { return a.sequences.page_table; }},
    {"seqused_k", [](MsaArgs& a) -> tessera_tensor& { return a.sequences.seqused_k; }},
};
template <class Use>
void each_field(const Msa& call, const Use& use) {
  for (const NamedField& f : kShared) use(f);
  if (call.shape.page == 0) {
    for (const NamedField& f : kPackedOnly) use(f);
  } else {
    for (const NamedField& f : kPagedOnly) use(f);
  }
}

// What is wrong with a tensor by itself, whichever it is.
TEST_F(MsaErrors, RankDtypeStrideAndData) {
  const std::pair<tessera_status, std::function<void(tessera_tensor&)>> changes[] = {
      {kInvalid, [](tessera_tensor& t) { t.ndim = t.ndim == 5 ? 4 : 5; }},
      {kInvalid, [](tessera_tensor& t) { t.ndim = t.ndim == 1 ? 2 : 1; }},
      {kInvalid, [](tessera_tensor& t) { t.ndim = -1; }},
      {kInvalid, [](tessera_tensor& t) { t.ndim = 1000000; }},
      {kType, [](tessera_tensor& t) { t.dtype = TESSERA_OTHER_DTYPE; }},
      {kType, [](tessera_tensor& t) { t.dtype = t.dtype == TESSERA_I32 ? TESSERA_F32 : TESSERA_I32; }},
      {kType, [](tessera_tensor& t) { t.dtype = static_cast<tessera_dtype>(-5); }},
      {kInvalid, [](tessera_tensor& t) { t.stride[0] = -1; }},
      {kInvalid, [](tessera_tensor& t) { t.stride[t.ndim - 1] = -1; }},
      {kInvalid, [](tessera_tensor& t) { t.shape[0] = -2; }},
      {kInvalid, [](tessera_tensor& t) { t.stride[0] = std::numeric_limits<int64_t>::max(); }},
      {kInvalid, [](tessera_tensor& t) { t.data = nullptr; }},
      {kInvalid, [](tessera_tensor& t) { t.data = static_cast<char*>(t.data) - 1; }},
  };
  for (const Msa* call : {&packed, &paged}) {
    each_field(*call, [&](const NamedField& f) {
      for (const auto& change : changes) {
        refused(*call, change.first, f.name, [&](MsaArgs& a) { change.second(f.of(a)); });
      }
    });
  }
}

TEST_F(MsaErrors, Missing) {
  for (const Msa* call : {&packed, &paged}) {
    each_field(*call, [&](const NamedField& f) {
      const std::string name = f.name;
      if (name == "q_offset" || name == "lse") return;
      refused(*call, kInvalid, f.name, [&](MsaArgs& a) { f.of(a) = {}; });
    });
  }
  EXPECT_EQ(tessera_msa_sparse_attention(nullptr, nullptr), kInvalid);
  size_t bytes = 0;
  EXPECT_EQ(tessera_msa_sparse_attention_workspace_size(nullptr, nullptr, &bytes), kInvalid);
  const MsaArgs a = packed.args_into(packed.output());
  EXPECT_EQ(tessera_msa_sparse_attention_workspace_size(&a, nullptr, nullptr), kInvalid);
}

TEST_F(MsaErrors, Axes) {
  for (int axis : {0, 1}) {
    both_refused(kInvalid, "q2k_indices", [&](MsaArgs& a) { --a.q2k_indices.shape[axis]; });
    both_refused(kInvalid, "v", [&](MsaArgs& a) { --a.v.shape[axis]; });
    both_refused(kInvalid, "lse", [&](MsaArgs& a) { --a.lse.shape[axis]; });
  }
  refused(paged, kInvalid, "v", [](MsaArgs& a) { --a.v.shape[2]; });
  for (int axis : {0, 1, 2}) both_refused(kInvalid, "out", [&](MsaArgs& a) { --a.out.shape[axis]; });
  both_refused(kInvalid, "k", [](MsaArgs& a) { --a.k.shape[a.k.ndim - 1]; });
  both_refused(kInvalid, "q", [](MsaArgs& a) { a.q.shape[1] = 3; });
  both_refused(kInvalid, "q", [](MsaArgs& a) { a.q.shape[1] = 0; });
  both_refused(kInvalid, "k", [](MsaArgs& a) { a.k.shape[1] = a.v.shape[1] = 0; });
  both_refused(kInvalid, "q", [](MsaArgs& a) { a.q.shape[2] = a.k.shape[a.k.ndim - 1] = 0; });
  both_refused(kInvalid, "q_offset", [](MsaArgs& a) { --a.sequences.q_offset.shape[0]; });
  both_refused(kInvalid, "cu_seqlens_q", [](MsaArgs& a) { a.sequences.cu_seqlens_q.shape[0] = 0; });
  // Each of B's other witnesses is called to account when cu_seqlens_q says 1.
  refused(packed, kInvalid, "cu_seqlens_k", [](MsaArgs& a) { --a.sequences.cu_seqlens_q.shape[0]; });
  refused(paged, kInvalid, "page_table", [](MsaArgs& a) { --a.sequences.cu_seqlens_q.shape[0]; });
  refused(paged, kInvalid, "seqused_k", [](MsaArgs& a) { --a.sequences.seqused_k.shape[0]; });
}

TEST_F(MsaErrors, DtypesAndFeatures) {
  both_refused(kType, "k", [](MsaArgs& a) { a.k.dtype = TESSERA_F16; });
  both_refused(kType, "v", [](MsaArgs& a) { a.v.dtype = TESSERA_F16; });
  both_refused(kType, "out", [](MsaArgs& a) { a.out.dtype = TESSERA_F16; });
  both_refused(kType, "lse", [](MsaArgs& a) { a.lse.dtype = TESSERA_BF16; });
  both_refused(kInvalid, "q", [](MsaArgs& a) { a.q.stride[2] = 2; });
  both_refused(kInvalid, "k", [](MsaArgs& a) { a.k.stride[a.k.ndim - 1] = 2; });
  both_refused(kInvalid, "v", [](MsaArgs& a) { a.v.stride[a.v.ndim - 1] = 0; });
  both_refused(kInvalid, "out", [](MsaArgs& a) { a.out.stride[2] = 2; });
}

TEST_F(MsaErrors, Options) {
  both_refused(kInvalid, "block_size", [](MsaArgs& a) { a.block_size = -1; });
  both_refused(kInvalid, "mask", [](MsaArgs& a) { a.mask = static_cast<tessera_mask>(2); });
  for (const float scale : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    both_refused(kInvalid, "softmax_scale", [&](MsaArgs& a) { a.softmax_scale = &scale; });
  }
  both_refused(kInvalid, "seqlen_q", [](MsaArgs& a) { a.sequences.seqlen_q = 4; });  // and cu_seqlens_q
  for (int64_t rows : {-1, 3, 16}) {                                                 // q has 8
    both_refused(kInvalid, "seqlen_q", [&](MsaArgs& a) {
      a.sequences.cu_seqlens_q = {};
      a.sequences.seqlen_q = rows;
    });
  }
  refused(paged, kInvalid, "cu_seqlens_k", [&](MsaArgs& a) { a.sequences.cu_seqlens_k = packed.cu_k; });
  refused(packed, kInvalid, "k", [&](MsaArgs& a) { a.sequences.page_table = paged.table; });
  refused(paged, kInvalid, "k", [](MsaArgs& a) { a.sequences.page_table = a.sequences.seqused_k = {}; });
}

TEST_F(MsaErrors, OverlapOfAnOutput) {
  for (const Msa* call : {&packed, &paged}) {
    each_field(*call, [&](const NamedField& f) {
      const std::string name = f.name;
      if (name != "lse") refused(*call, kInvalid, "lse", [&](MsaArgs& a) { a.lse.data = f.of(a).data; });
      if (name == "lse" || name == "out") return;
      refused(*call, kInvalid, "out", [&](MsaArgs& a) { a.out.data = f.of(a).data; });
    });
    refused(*call, kInvalid, "lse", [](MsaArgs& a) { a.lse.stride[1] = 0; });
    refused(*call, kInvalid, "out", [](MsaArgs& a) { a.out.stride[0] = 1; });
  }
}

TEST_F(MsaErrors, ExplainAndWorkspaceSize) {
  for (const Msa* call : {&packed, &paged}) {
    MsaArgs a = call->args_into(call->output());
    char line[4096];
    ASSERT_EQ(tessera_msa_sparse_attention_explain(&a, nullptr, line, sizeof line), TESSERA_OK) << tessera_last_error();
    EXPECT_NE(std::string(line).find("variant: " + variants()[0]), std::string::npos) << line;
    ASSERT_EQ(tessera_msa_sparse_attention_explain(&a, nullptr, line, 5), TESSERA_OK);
    EXPECT_EQ(std::string(line).size(), 4u);
    a.block_size = -1;
    size_t bytes = 7;
    expect_complaint(tessera_msa_sparse_attention_workspace_size(&a, nullptr, &bytes), kInvalid,
                     "msa_sparse_attention_workspace_size", "block_size");
    EXPECT_EQ(bytes, 7u);
    expect_complaint(tessera_msa_sparse_attention_explain(&a, nullptr, line, sizeof line), kInvalid,
                     "msa_sparse_attention_explain", "block_size");
  }
}

// ---- Paged keys of a batch ------------------------------------------------------------------------------------------------------

TEST_F(MsaErrors, PagedPrefill) {
  const Attention call = make_attention({.requests = 2, .queries = 5}, TESSERA_BF16);
  const auto refuse = [&](const char* argument, const std::function<void(Args&)>& spoil) {
    SCOPED_TRACE(argument);
    const Output to = call.output();
    Args a = call.args_into(to);
    const Msa keys = make_msa({.rows = {5, 5}, .keys = {50, 20}, .kv_heads = 1, .page = 8}, TESSERA_BF16);
    a.k = keys.k;
    a.v = keys.v;
    a.page_table = keys.table;
    a.seqused_k = keys.used;
    const Args valid = a;
    spoil(a);
    expect_complaint(tessera_block_sparse_gqa_prefill(&a, nullptr), kInvalid, "block_sparse_gqa_prefill", argument);
    EXPECT_TRUE(to.out.untouched() && to.lse.untouched());
    EXPECT_EQ(tessera_block_sparse_gqa_prefill(&valid, nullptr), TESSERA_OK) << tessera_last_error();
  };
  refuse("page_table", [](Args& a) { a.page_table = {}; });
  refuse("seqused_k", [](Args& a) { a.seqused_k = {}; });
  refuse("page_table", [](Args& a) { --a.page_table.shape[0]; });
  refuse("seqused_k", [](Args& a) { --a.seqused_k.shape[0]; });
  refuse("k", [](Args& a) { a.page_table = a.seqused_k = {}; });  // as a batch: 11 requests
  refuse("v", [](Args& a) { --a.v.shape[2]; });
  refuse("k", [](Args& a) { a.k.ndim = 3; });
}

// ---- A single block of queries -----------------------------------------------------------------------------------------------------

TEST(SingleQErrors, NameTheArgumentAndItsShape) {
  using SingleQ = tessera_block_sparse_attention_single_q_args;
  const TestTensor q(TESSERA_F32, {2, 5, 16}), k(TESSERA_F32, {2, 40, 16}), v(TESSERA_F32, {2, 40, 8});
  const TestTensor ids(TESSERA_I32, {2, 3}), offset(TESSERA_I32, {1});
  const auto refuse = [&](tessera_status status, const char* argument, const char* part,
                          const std::function<void(SingleQ&)>& spoil) {
    for (tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
      tessera_context context = {};
      context.backend = backend;
      const TestTensor out(TESSERA_F32, {2, 5, 8}), lse(TESSERA_F32, {2, 5});
      SingleQ a = {q, k, v, ids, 16, TESSERA_MASK_CAUSAL, nullptr, offset, out, lse};
      spoil(a);
      expect_complaint(tessera_block_sparse_attention_single_q(&a, &context), status, "block_sparse_attention_single_q",
                       argument);
      EXPECT_NE(std::string(tessera_last_error()).find(part), std::string::npos) << tessera_last_error();
      EXPECT_TRUE(out.untouched() && lse.untouched());
    }
  };
  EXPECT_EQ(tessera_block_sparse_attention_single_q(nullptr, nullptr), kInvalid);
  refuse(kInvalid, "q", "[H, bq, D] is missing", [](SingleQ& a) { a.q = {}; });
  refuse(kInvalid, "k", "2 axes", [](SingleQ& a) { a.k.ndim = 2; });
  refuse(kInvalid, "v", "4 axes", [](SingleQ& a) { a.v.ndim = 4; });
  refuse(kInvalid, "kv_indices", "3 axes", [](SingleQ& a) { a.kv_indices.ndim = 3; });
  refuse(kInvalid, "out", "[H, bq, Dv] is missing", [](SingleQ& a) { a.out = {}; });
  refuse(kInvalid, "lse", "3 axes", [](SingleQ& a) { a.lse.ndim = 3; });
  refuse(kInvalid, "k", "[3, 40, 16]", [](SingleQ& a) { a.k.shape[0] = 3; });
  refuse(kInvalid, "v", "[3, 40, 8]", [](SingleQ& a) { a.v.shape[0] = 3; });
  refuse(kInvalid, "k", "[2, 40, 8]", [](SingleQ& a) { a.k.shape[2] = 8; });
  refuse(kInvalid, "v", "[2, 41, 8]", [](SingleQ& a) { a.v.shape[1] = 41; });
  refuse(kInvalid, "out", "[2, 4, 8]", [](SingleQ& a) { a.out.shape[1] = 4; });
  refuse(kInvalid, "lse", "[1, 5]", [](SingleQ& a) { a.lse.shape[0] = 1; });
  refuse(kInvalid, "kv_indices", "[1, 3]", [](SingleQ& a) { a.kv_indices.shape[0] = 1; });
  refuse(kInvalid, "q_offset", "[2]", [](SingleQ& a) { a.q_offset.shape[0] = 2; });
  refuse(kInvalid, "k", "axis 1", [](SingleQ& a) { a.k.stride[1] = -1; });
  refuse(kType, "v", "float32 but k is bfloat16", [](SingleQ& a) { a.k.dtype = TESSERA_BF16; });
  refuse(kType, "kv_indices", "float32", [](SingleQ& a) { a.kv_indices.dtype = TESSERA_F32; });
  refuse(kInvalid, "block_size", "-3", [](SingleQ& a) { a.block_size = -3; });
  refuse(kInvalid, "out", "overlaps v", [](SingleQ& a) { a.out.data = a.v.data; });
  refuse(kInvalid, "lse", "overlaps itself", [](SingleQ& a) { a.lse.stride[0] = 0; });
}

}  // namespace
}  // namespace tessera::test
