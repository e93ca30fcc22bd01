// Attention with a list per token and KV head, and of a single query block: Python's arguments in the order of the
// signatures in tessera/_msa_attention.py, by position.
#include <algorithm>

#include "python/attention.h"
#include "python/call.h"
#include "python/module.h"

namespace tessera::python {
namespace {

using MsaArgs = tessera_msa_sparse_attention_args;

constexpr Functions<MsaArgs> kMsaSparseAttentionFunctions = {tessera_msa_sparse_attention,
                                                             tessera_msa_sparse_attention_parallel};

MsaArgs packed_inputs(Call& call, nb::handle q, nb::handle k, nb::handle v, nb::handle q2k_indices,
                      nb::handle cu_seqlens_q, nb::handle cu_seqlens_k, nb::handle page_table, nb::handle seqused_k,
                      nb::handle block_size, nb::handle causal, nb::handle softmax_scale, nb::handle q_offset) {
  auto args = attention_inputs<MsaArgs>(call, q, k, v, block_size, causal, softmax_scale);
  args.q2k_indices = call.input("q2k_indices", q2k_indices, kI32);
  tessera_sequences& s = args.sequences;
  s.cu_seqlens_q = call.input("cu_seqlens_q", cu_seqlens_q, kI32);
  s.cu_seqlens_k = call.optional_input("cu_seqlens_k", cu_seqlens_k, kI32);
  s.page_table = call.optional_input("page_table", page_table, kI32);
  s.seqused_k = call.optional_input("seqused_k", seqused_k, kI32);
  s.q_offset = call.q_offset(q_offset, std::max<int64_t>(s.cu_seqlens_q.shape[0] - 1, 0));
  return args;
}

MsaArgs decode_inputs(Call& call, nb::handle q, nb::handle k, nb::handle v, nb::handle q2k_indices,
                      nb::handle page_table, nb::handle seqused_k, nb::handle seqlen_q, nb::handle block_size,
                      nb::handle causal, nb::handle softmax_scale, nb::handle q_offset) {
  auto args = attention_inputs<MsaArgs>(call, q, k, v, block_size, causal, softmax_scale);
  args.q2k_indices = call.input("q2k_indices", q2k_indices, kI32);
  tessera_sequences& s = args.sequences;
  s.page_table = call.input("page_table", page_table, kI32);
  s.seqused_k = call.input("seqused_k", seqused_k, kI32);
  s.seqlen_q = call.positive("seqlen_q", seqlen_q);
  s.q_offset = call.q_offset(q_offset, args.q.shape[0] / s.seqlen_q);
  return args;
}

nb::object msa_sparse_attention(nb::handle q, nb::handle k, nb::handle v, nb::handle q2k_indices,
                                nb::handle cu_seqlens_q, nb::handle cu_seqlens_k, nb::handle page_table,
                                nb::handle seqused_k, nb::handle block_size, nb::handle causal,
                                nb::handle softmax_scale, nb::handle q_offset, nb::handle return_softmax_lse,
                                nb::handle out, nb::handle lse, nb::handle backend) {
  Call call("msa_sparse_attention", backend);
  auto args = packed_inputs(call, q, k, v, q2k_indices, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, block_size,
                            causal, softmax_scale, q_offset);
  const bool returns_lse = call.flag("return_softmax_lse", return_softmax_lse);
  return attend(call, kMsaSparseAttentionFunctions, args, returns_lse, out, lse);
}

nb::object msa_sparse_attention_explain(nb::handle q, nb::handle k, nb::handle v, nb::handle q2k_indices,
                                        nb::handle cu_seqlens_q, nb::handle cu_seqlens_k, nb::handle page_table,
                                        nb::handle seqused_k, nb::handle block_size, nb::handle causal,
                                        nb::handle softmax_scale, nb::handle q_offset, nb::handle, nb::handle out,
                                        nb::handle lse, nb::handle backend) {
  Call call("msa_sparse_attention", backend);
  auto args = packed_inputs(call, q, k, v, q2k_indices, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, block_size,
                            causal, softmax_scale, q_offset);
  return explain(call, tessera_msa_sparse_attention_explain, args, out, lse);
}

nb::object msa_sparse_decode_attention(nb::handle q, nb::handle k, nb::handle v, nb::handle q2k_indices,
                                       nb::handle page_table, nb::handle seqused_k, nb::handle seqlen_q,
                                       nb::handle block_size, nb::handle causal, nb::handle softmax_scale,
                                       nb::handle q_offset, nb::handle return_softmax_lse, nb::handle out,
                                       nb::handle lse, nb::handle backend) {
  Call call("msa_sparse_decode_attention", backend);
  auto args = decode_inputs(call, q, k, v, q2k_indices, page_table, seqused_k, seqlen_q, block_size, causal,
                            softmax_scale, q_offset);
  const bool returns_lse = call.flag("return_softmax_lse", return_softmax_lse);
  return attend(call, kMsaSparseAttentionFunctions, args, returns_lse, out, lse);
}

nb::object msa_sparse_decode_attention_explain(nb::handle q, nb::handle k, nb::handle v, nb::handle q2k_indices,
                                               nb::handle page_table, nb::handle seqused_k, nb::handle seqlen_q,
                                               nb::handle block_size, nb::handle causal, nb::handle softmax_scale,
                                               nb::handle q_offset, nb::handle, nb::handle out, nb::handle lse,
                                               nb::handle backend) {
  Call call("msa_sparse_decode_attention", backend);
  auto args = decode_inputs(call, q, k, v, q2k_indices, page_table, seqused_k, seqlen_q, block_size, causal,
                            softmax_scale, q_offset);
  return explain(call, tessera_msa_sparse_attention_explain, args, out, lse);
}

using SingleQArgs = tessera_block_sparse_attention_single_q_args;

SingleQArgs single_q_inputs(Call& call, nb::handle q, nb::handle k, nb::handle v, nb::handle kv_indices,
                            nb::handle block_size, nb::handle causal, nb::handle softmax_scale, nb::handle q_offset) {
  auto args = attention_inputs<SingleQArgs>(call, q, k, v, block_size, causal, softmax_scale);
  args.kv_indices = call.input("kv_indices", kv_indices, kI32);
  args.q_offset = call.q_offset(q_offset, 1);
  return args;
}

nb::object block_sparse_attention_single_q(nb::handle q, nb::handle k, nb::handle v, nb::handle kv_indices,
                                           nb::handle block_size, nb::handle causal, nb::handle softmax_scale,
                                           nb::handle q_offset, nb::handle return_lse, nb::handle out, nb::handle lse,
                                           nb::handle backend) {
  Call call("block_sparse_attention_single_q", backend);
  auto args = single_q_inputs(call, q, k, v, kv_indices, block_size, causal, softmax_scale, q_offset);
  return attend(call, Functions<SingleQArgs>{tessera_block_sparse_attention_single_q}, args,
                call.flag("return_lse", return_lse), out, lse);
}

nb::object block_sparse_attention_single_q_explain(nb::handle q, nb::handle k, nb::handle v, nb::handle kv_indices,
                                                   nb::handle block_size, nb::handle causal, nb::handle softmax_scale,
                                                   nb::handle q_offset, nb::handle, nb::handle out, nb::handle lse,
                                                   nb::handle backend) {
  Call call("block_sparse_attention_single_q", backend);
  auto args = single_q_inputs(call, q, k, v, kv_indices, block_size, causal, softmax_scale, q_offset);
  return explain(call, tessera_block_sparse_attention_single_q_explain, args, out, lse);
}

}  // namespace

void bind_msa_attention(nb::module_& m) {
  bind(m, "msa_sparse_attention", msa_sparse_attention);
  bind(m, "msa_sparse_attention_explain", msa_sparse_attention_explain);
  bind(m, "msa_sparse_decode_attention", msa_sparse_decode_attention);
  bind(m, "msa_sparse_decode_attention_explain", msa_sparse_decode_attention_explain);
  bind(m, "block_sparse_attention_single_q", block_sparse_attention_single_q);
  bind(m, "block_sparse_attention_single_q_explain", block_sparse_attention_single_q_explain);
}

}  // namespace tessera::python
