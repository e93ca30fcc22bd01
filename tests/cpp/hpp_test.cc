// tessera.hpp: what it passes to the C ABI and what it throws. The operators themselves are tested elsewhere.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/tessera.hpp"

namespace tessera {
namespace {

struct Half {
  uint16_t bits;
};

}  // namespace
template <>
inline constexpr tessera_dtype dtype_of<Half> = TESSERA_F16;
namespace {

TEST(Hpp, TensorsAreDenseUnlessTold) {
  float data[24] = {};
  const Tensor dense = tensor(data, {2, 3, 4});
  EXPECT_EQ(dense.data, data);
  EXPECT_EQ(dense.dtype, TESSERA_F32);
  EXPECT_EQ(dense.ndim, 3);
  EXPECT_EQ(dense.shape[2], 4);
  EXPECT_EQ(dense.stride[0], 12);
  EXPECT_EQ(dense.stride[1], 4);
  EXPECT_EQ(dense.stride[2], 1);
  const Tensor strided = tensor(data, {3, 2}, {1, 12});
  EXPECT_EQ(strided.stride[0], 1);
  EXPECT_EQ(strided.stride[1], 12);
  EXPECT_THROW(tensor(data, {1, 1, 1, 1, 1, 1}), InvalidArgument);
  EXPECT_THROW(tensor(data, {2, 2}, {1}), InvalidArgument);
}

TEST(Hpp, DtypesFollowElementTypes) {
  EXPECT_EQ(tensor(static_cast<const int32_t*>(nullptr), {0}).dtype, TESSERA_I32);
  EXPECT_EQ(tensor(static_cast<bfloat16*>(nullptr), {0}).dtype, TESSERA_BF16);
  EXPECT_EQ(tensor(static_cast<float16*>(nullptr), {0}).dtype, TESSERA_F16);
  EXPECT_EQ(tensor(static_cast<Half*>(nullptr), {0}).dtype, TESSERA_F16);
  EXPECT_EQ(tensor(static_cast<uint16_t*>(nullptr), TESSERA_BF16, {0}).dtype, TESSERA_BF16);
}

// Two keys with equal scores and values 1 and 3.
struct Call {
  std::vector<float> q = {0}, k = {5, 5}, v = {1, 3}, out = {-1}, lse = {-1}, o = {-1}, l = {-1}, m = {-1};
  std::vector<int32_t> blocks = {0};

  BlockSparseGqaPrefill inputs() {
    return {.q = tensor(q.data(), {1, 1, 1, 1}),
            .k = tensor(k.data(), {1, 2, 1, 1}),
            .v = tensor(v.data(), {1, 2, 1, 1}),
            .kv_indices = tensor(blocks.data(), {1, 1, 1})};
  }
  BlockSparseGqaPrefill args() {
    BlockSparseGqaPrefill a = inputs();
    a.out = tensor(out.data(), {1, 1, 1, 1});
    a.lse = tensor(lse.data(), {1, 1, 1});
    return a;
  }
  BlockSparseGqaPrefill state_args() {
    BlockSparseGqaPrefill a = inputs();
    a.state_o = tensor(o.data(), {1, 1, 1, 1});
    a.state_l = tensor(l.data(), {1, 1, 1});
    a.state_m = tensor(m.data(), {1, 1, 1});
    return a;
  }
};

TEST(Hpp, RunsAttention) {
  Call call;
  block_sparse_gqa_prefill(call.args());
  EXPECT_FLOAT_EQ(call.out[0], 2);
  EXPECT_FLOAT_EQ(call.lse[0], std::log(2.0f));
  block_sparse_gqa_prefill_state(call.state_args());
  EXPECT_FLOAT_EQ(call.o[0], 4);
  EXPECT_FLOAT_EQ(call.l[0], 2);
  EXPECT_FLOAT_EQ(call.m[0], 0);
}

TEST(Hpp, PassesOptions) {
  Call call;
  call.q = {1};
  call.k = {0, std::log(3.0f)};
  BlockSparseGqaPrefill args = call.args();
  args.softmax_scale = 1;
  block_sparse_gqa_prefill(args);
  EXPECT_FLOAT_EQ(call.out[0], (1 + 3 * 3) / 4.0f);
  args.block_size = 1;
  block_sparse_gqa_prefill(args);
  EXPECT_FLOAT_EQ(call.out[0], 1);
  args.block_size = 2;
  const int32_t offset = 0;
  args.q_offset = tensor(&offset, {1});
  block_sparse_gqa_prefill(args);
  EXPECT_FLOAT_EQ(call.out[0], 1);
  args.causal = false;
  block_sparse_gqa_prefill(args);
  EXPECT_FLOAT_EQ(call.out[0], 2.5f);
}

TEST(Hpp, PassesTheContext) {
  Call call;
  const auto run_with = [&](const Context& context) {
    call.out[0] = -1;
    block_sparse_gqa_prefill(call.args(), context);
    return call.out[0];
  };
  EXPECT_FLOAT_EQ(run_with({.executor = threads(2)}), 2);
  EXPECT_FLOAT_EQ(run_with({.executor = part(0, 1)}), 2);
  EXPECT_FLOAT_EQ(run_with({.backend = TESSERA_BACKEND_REFERENCE}), 2);
  EXPECT_FLOAT_EQ(run_with({.variant = "scalar"}), 2);
  const size_t bytes = block_sparse_gqa_prefill_workspace_size(call.args());
  std::vector<std::byte> memory(bytes + 64);
  void* aligned = memory.data();
  size_t room = memory.size();
  ASSERT_NE(std::align(64, bytes, aligned, room), nullptr);
  EXPECT_FLOAT_EQ(run_with({.workspace = {static_cast<std::byte*>(aligned), bytes}}), 2);
}

TEST(Hpp, RunsOnTheHostsThreads) {
  Call call;
  std::vector<float> out(8, -1);
  BlockSparseGqaPrefill args = call.inputs();
  for (Tensor* input : {&args.q, &args.k, &args.v, &args.kv_indices}) input->shape[0] = 8, input->stride[0] = 0;
  args.out = tensor(out.data(), {8, 1, 1, 1});
  int calls = 0;
  auto serial = [&](int32_t n, auto body) {
    for (int32_t i = 0; i < n; ++i) ++calls, body(i);
  };
  block_sparse_gqa_prefill(args, {.executor = parallel_for(serial, 3)});
  EXPECT_EQ(out, std::vector<float>(8, 2));
  EXPECT_GT(calls, 0);
}

TEST(Hpp, Explains) {
  Call call;
  EXPECT_NE(block_sparse_gqa_prefill_explain(call.args(), {.variant = "scalar"}).find("scalar"), std::string::npos);
  BlockSparseAttentionSingleQ one = {.q = tensor(call.q.data(), {1, 1, 1}),
                                     .k = tensor(call.k.data(), {1, 2, 1}),
                                     .v = tensor(call.v.data(), {1, 2, 1}),
                                     .kv_indices = tensor(call.blocks.data(), {1}),
                                     .out = tensor(call.out.data(), {1, 1, 1})};
  EXPECT_NE(block_sparse_attention_single_q_explain(one, {.variant = "scalar"}).find("scalar"), std::string::npos);
  EXPECT_GT(block_sparse_attention_single_q_workspace_size(one), 0u);
}

template <class Standard, class Ours>
void expect_thrown(Call& call, const BlockSparseGqaPrefill& args, tessera_status status, const char* argument,
                   const Context& context = {}) {
  EXPECT_THROW(block_sparse_gqa_prefill(args, context), Ours);
  EXPECT_THROW(block_sparse_gqa_prefill(args, context), Standard);
  try {
    block_sparse_gqa_prefill(args, context);
  } catch (const std::exception& e) {
    const Error* error = dynamic_cast<const Error*>(&e);
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->status(), status);
    EXPECT_EQ(error->message(), e.what());
    EXPECT_NE(error->message().find(argument), std::string::npos) << error->message();
  }
  EXPECT_EQ(call.out[0], -1);
}

TEST(Hpp, ThrowsWhatTheStatusStandsFor) {
  Call call;
  BlockSparseGqaPrefill args = call.args();
  args.k.shape[0] = 2;
  expect_thrown<std::invalid_argument, InvalidArgument>(call, args, TESSERA_INVALID_ARGUMENT, "k ");
  args = call.args();
  args.kv_indices.dtype = TESSERA_OTHER_DTYPE;
  expect_thrown<std::logic_error, TypeError>(call, args, TESSERA_TYPE_ERROR, "kv_indices");
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    if (tessera_variant_available(i) != 0) continue;
    expect_thrown<std::logic_error, NotImplemented>(call, call.args(), TESSERA_NOT_IMPLEMENTED, tessera_variant_name(i),
                                                    {.variant = tessera_variant_name(i)});
  }
  EXPECT_THROW(throw_if_failed(TESSERA_OUT_OF_MEMORY), std::bad_alloc);
  EXPECT_THROW(throw_if_failed(TESSERA_OUT_OF_MEMORY), OutOfMemory);
  EXPECT_THROW(throw_if_failed(TESSERA_INTERNAL), std::runtime_error);
  EXPECT_NO_THROW(throw_if_failed(TESSERA_OK));
}

TEST(Hpp, Merges) {
  const std::vector<float> o[] = {{2}, {9}}, l[] = {{2}, {3}}, m = {0}, lse = {0};
  float out = -1, merged = -1;
  std::vector<Tensor> os, ls, ms, lses;
  for (int i = 0; i < 2; ++i) {
    os.push_back(tensor(o[i].data(), {1, 1}));
    ls.push_back(tensor(l[i].data(), {1}));
    ms.push_back(tensor(m.data(), {1}));
    lses.push_back(tensor(lse.data(), {1}));
  }
  cp_merge({.o = os, .l = ls, .m = ms, .out = tensor(&out, {1, 1})});
  EXPECT_FLOAT_EQ(out, 11.0f / 5);
  merge_states({.partial_out = os, .partial_lse = lses, .out = tensor(&out, {1, 1}), .lse = tensor(&merged, {1})});
  EXPECT_FLOAT_EQ(out, 5.5f);
  EXPECT_FLOAT_EQ(merged, std::log(2.0f));
  ls.pop_back();
  EXPECT_THROW(cp_merge({.o = os, .l = ls, .m = ms, .out = tensor(&out, {1, 1})}), InvalidArgument);
  EXPECT_THROW(merge_states({.partial_out = os, .partial_lse = ls}), InvalidArgument);
}

TEST(Hpp, Selects) {
  const std::vector<float> q = {1}, k = {0, 9, 1, 2};
  std::vector<int32_t> ids(2, -7);
  const Tensor qs = tensor(q.data(), {1, 1, 1, 1}), ks = tensor(k.data(), {1, 4, 1, 1});
  const Tensor indices = tensor(ids.data(), {1, 1, 1, 2});
  moba_select({.q = qs, .k = ks, .topk = 2, .block_size = 1, .indices = indices});
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3}));  // the best and its own
  moba_select({.q = qs, .k = ks, .topk = 2, .block_size = 1, .local_blocks = 0, .indices = indices});
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3}));
  mass_select({.q = qs, .k = ks, .topk = 2, .block_size = 1, .indices = indices});
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 3}));  // the first and its own
  mass_select(
      {.q = qs, .k = ks, .topk = 2, .block_size = 1, .init_blocks = 0, .softmax_scale = -1.0f, .indices = indices});
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 3}));
  EXPECT_THROW(moba_select({.q = qs, .k = ks, .topk = 0, .indices = indices}), InvalidArgument);
  EXPECT_GT(moba_select_workspace_size({.q = qs, .k = ks, .topk = 2, .indices = indices}), 0u);
  EXPECT_GT(mass_select_workspace_size({.q = qs, .k = ks, .topk = 2, .indices = indices}), 0u);
}

TEST(Hpp, SelectsByAnIndexer) {
  const std::vector<float> q = {1, -1}, k = {0, 9, 1, 2};
  const std::vector<int32_t> bounds_q = {0, 1}, bounds_k = {0, 4};
  std::vector<float> scores(4, -7);
  std::vector<int32_t> ids(4, -7);
  MsaIndex index = {
      .q = tensor(q.data(), {1, 2, 1}),
      .k = tensor(k.data(), {4, 1, 1}),
      .sequences = {.cu_seqlens_q = tensor(bounds_q.data(), {2}), .cu_seqlens_k = tensor(bounds_k.data(), {2})},
      .block_size = 2};
  msa_block_scores({.index = index, .scores = tensor(scores.data(), {2, 1, 2})});
  EXPECT_EQ(scores, (std::vector<float>{9, 2, 0, -1}));
  msa_select({.index = index, .topk = 1, .local_blocks = 0, .indices = tensor(ids.data(), {2, 1, 1})});
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 0, -7, -7}));
  index.reduce_heads = true;
  index.block_size = 1;
  const MsaSelect args = {.index = index, .topk = 3, .init_blocks = 1, .indices = tensor(ids.data(), {1, 1, 3})};
  msa_select(args);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 3, -7}));
  EXPECT_GT(msa_select_workspace_size(args), 0u);
  EXPECT_GT(msa_block_scores_workspace_size({.index = index, .scores = tensor(scores.data(), {1, 1, 4})}), 0u);
  EXPECT_THROW(msa_select({.index = index, .topk = 0}), InvalidArgument);
}

TEST(Hpp, ScoresAndSelectsCompressedKeys) {
  const std::vector<float> q = {1, -1}, k = {4, -2, 0, 1, 9}, weights = {1, 3};
  const std::vector<int32_t> position = {9}, table = {2, 0}, lens = {2};
  std::vector<float> scores(5, -7);
  std::vector<int32_t> ids(2, -7), tokens(5, -7);
  QsaIndex index = {.q = tensor(q.data(), {1, 1, 2, 1}),
                    .k = tensor(k.data(), {1, 5, 1}),
                    .scale = 2.0f,
                    .block_size = 2,
                    .query_positions = tensor(position.data(), {1, 1})};
  qsa_indexer_mqa_score({.index = index, .scores = tensor(scores.data(), {1, 1, 5})});
  EXPECT_EQ(scores, (std::vector<float>{8, 4, 0, 2, 18}));
  const QsaSelect select = {.index = index,
                            .topk = 2,
                            .indices = tensor(ids.data(), {1, 1, 2}),
                            .token_indices = tensor(tokens.data(), {1, 1, 5})};
  qsa_select(select);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 8, 9, -1}));
  EXPECT_EQ(qsa_select_workspace_size(select), qsa_select_workspace_size(select));
  index.weights = tensor(weights.data(), {1, 1, 2});
  qsa_indexer_mqa_score({.index = index, .scores = tensor(scores.data(), {1, 1, 5})});
  EXPECT_EQ(scores, (std::vector<float>{8, 12, 0, 2, 18}));
  qsa_mqa_prefill({.q = tensor(q.data(), {1, 2, 1}),
                   .k = tensor(k.data(), {5, 1}),
                   .row_starts = tensor(lens.data(), {1}),
                   .row_ends = tensor(position.data(), {1}),
                   .scores = tensor(scores.data(), {1, 5})});
  EXPECT_EQ(scores, (std::vector<float>{-INFINITY, -INFINITY, 0, 1, 9}));
  qsa_mqa_decode({.q = tensor(q.data(), {1, 2, 1}),
                  .k_cache = tensor(k.data(), {5, 1, 1}),
                  .page_table = tensor(table.data(), {1, 2}),
                  .context_lens = tensor(lens.data(), {1}),
                  .scale = 0.5f,
                  .scores = tensor(scores.data(), {1, 3})});
  EXPECT_EQ(scores, (std::vector<float>{0, 2, -INFINITY, 1, 9}));
  topk_blocks({.scores = tensor(scores.data(), {5}), .indices = tensor(ids.data(), {2})});
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 4}));
  EXPECT_THROW(topk_blocks({.scores = tensor(scores.data(), {5})}), InvalidArgument);
  EXPECT_THROW(qsa_select({.index = index, .topk = 0}), InvalidArgument);
}

// Two rows over three tokens with values 1, 3 and 8.
TEST(Hpp, AttendsToListedTokens) {
  const std::vector<float> q = {0, std::log(3.0f)}, k = {0, 1, 0}, v = {1, 3, 8}, gate = {0, 0};
  const std::vector<int32_t> tokens = {0, 1, 2, 0, 1, -1}, position = {1, 9};
  std::vector<float> out(2), lse(2);
  QsaSparseAttention args = {.q = tensor(q.data(), {1, 2, 1, 1}),
                             .k = tensor(k.data(), {1, 3, 1, 1}),
                             .v = tensor(v.data(), {1, 3, 1, 1}),
                             .token_indices = tensor(tokens.data(), {1, 2, 3}),
                             .softmax_scale = 1.0f,
                             .out = tensor(out.data(), {1, 2, 1, 1}),
                             .lse = tensor(lse.data(), {1, 2, 1})};
  qsa_sparse_attention(args);
  EXPECT_FLOAT_EQ(out[0], 2);  // at position 1
  EXPECT_FLOAT_EQ(out[1], 10.0f / 4);
  EXPECT_FLOAT_EQ(lse[1], std::log(4.0f));
  args.gate = tensor(gate.data(), {1, 2, 1});
  args.num_splits = 2;
  qsa_sparse_attention(args);
  EXPECT_FLOAT_EQ(out[1], 10.0f / 8);
  args.query_positions = tensor(position.data(), {1, 2});
  EXPECT_GT(qsa_sparse_attention_workspace_size(args), 0u);
  EXPECT_NE(qsa_sparse_attention_explain(args, {.variant = "scalar"}).find("scalar"), std::string::npos);
  QsaSparseAttention rows = {.q = tensor(q.data(), {2, 1, 1}),
                             .k = tensor(k.data(), {3, 1, 1}),
                             .v = tensor(v.data(), {3, 1, 1}),
                             .selected_kv_indices = tensor(tokens.data(), {2, 3}),
                             .out = tensor(out.data(), {2, 1, 1})};
  qsa_sparse_attention(rows);
  EXPECT_FLOAT_EQ(out[0], 4);
  rows.selected_kv_indices = {};
  EXPECT_THROW(qsa_sparse_attention(rows), InvalidArgument);
}

TEST(Hpp, AppendsToPages) {
  const std::vector<float> k = {1, 2, 3, 4}, v = {5, 6};
  const std::vector<int32_t> slots = {3, 0};
  std::vector<float> k_cache(8), v_cache(4);
  append_kv({.k = tensor(k.data(), {2, 1, 2}),
             .v = tensor(v.data(), {2, 1, 1}),
             .slots = tensor(slots.data(), {2}),
             .k_cache = tensor(k_cache.data(), {2, 1, 2, 2, 1}),
             .v_cache = tensor(v_cache.data(), {2, 1, 2, 1, 1})});
  EXPECT_EQ(k_cache, (std::vector<float>{3, 0, 4, 0, 0, 1, 0, 2}));
  EXPECT_EQ(v_cache, (std::vector<float>{6, 0, 0, 5}));
  EXPECT_THROW(append_kv({.k = tensor(k.data(), {2, 1, 2})}), InvalidArgument);
}

// Blocks of two tokens; without RoPE and with weights that make up for the norm a key is the mean.
TEST(Hpp, CompressesAppendsAndExpands) {
  const std::vector<float> raw = {1, 3, 3, 9}, weight = {0.5};
  const std::vector<int32_t> lens = {0}, more = {3}, ids = {1}, position = {2}, table = {1};
  std::vector<float> keys(2), ring(2), cache(4);
  const QsaKeyRule rule = {.norm_weight = tensor(weight.data(), {1}), .block_size = 2, .eps = 0, .rotary_dim = 0};
  qsa_compress_keys({.raw_keys = tensor(raw.data(), {1, 4, 1}), .rule = rule, .out = tensor(keys.data(), {1, 2, 1})});
  EXPECT_EQ(keys, (std::vector<float>{1.5, 1.5}));
  QsaAppendKeys append = {.raw_keys = tensor(raw.data(), {1, 3, 1}),
                          .seq_lens = tensor(lens.data(), {1}),
                          .rule = rule,
                          .ring = tensor(ring.data(), {1, 2, 1}),
                          .cache = tensor(cache.data(), {2, 2, 1}),
                          .page_table = tensor(table.data(), {1, 1})};
  qsa_append_keys(append);
  EXPECT_EQ(cache, (std::vector<float>{0, 0, 1.5, 0}));
  EXPECT_EQ(ring, (std::vector<float>{3, 3}));
  append.raw_keys = tensor(raw.data() + 3, {1, 1, 1});
  append.seq_lens = tensor(more.data(), {1});
  qsa_append_keys(append);
  EXPECT_EQ(cache, (std::vector<float>{0, 0, 1.5, 1.5}));
  EXPECT_EQ(ring, (std::vector<float>{3, 9}));
  std::vector<int32_t> tokens(7);
  qsa_expand_blocks({.block_ids = tensor(ids.data(), {1, 1}),
                     .query_positions = tensor(position.data(), {1}),
                     .token_indices = tensor(tokens.data(), {1, 7})});
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 2, -1, -1, -1, -1}));
  EXPECT_THROW(qsa_compress_keys({.raw_keys = tensor(raw.data(), {1, 4, 1})}), InvalidArgument);
  EXPECT_THROW(qsa_append_keys({.raw_keys = tensor(raw.data(), {1, 4, 1})}), InvalidArgument);
  EXPECT_THROW(qsa_expand_blocks({.block_ids = tensor(ids.data(), {1, 1})}), InvalidArgument);
}

}  // namespace
}  // namespace tessera
