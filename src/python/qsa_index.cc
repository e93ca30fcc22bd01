// QSA's scores and selection: Python's arguments in the order of the signatures in tessera/_qsa_index.py, by position.
#include <string>

#include "python/call.h"
#include "python/module.h"

namespace tessera::python {
namespace {

struct LayoutArguments {
  nb::handle block_table, page_size, cu_seqlens_q, token_to_req, num_requests, query_positions, seq_lens_q, block_size,
      scale, score_scale, weights, seq_lens_k;
};

tessera_qsa_index index_inputs(Call& call, nb::handle q_idx, nb::handle block_keys, const LayoutArguments& a) {
  tessera_qsa_index index{};
  index.q = call.input("q_idx", q_idx, kFloats);
  index.k = call.input("block_keys", block_keys, kFloats);
  index.page_table = call.optional_input("block_table", a.block_table, kI32);
  index.cu_seqlens_q = call.optional_input("cu_seqlens_q", a.cu_seqlens_q, kI32);
  index.token_to_req = call.optional_input("token_to_req", a.token_to_req, kI32);
  index.query_positions = call.optional_input("query_positions", a.query_positions, kI32);
  index.seq_lens_q = call.optional_input("seq_lens_q", a.seq_lens_q, kI32);
  index.seq_lens_k = call.optional_input("seq_lens_k", a.seq_lens_k, kI32);
  index.weights = call.optional_input("weights", a.weights, kF32);
  index.block_size = call.positive("block_size", a.block_size);
  index.scale = call.optional_scale(a.scale, a.score_scale);
  const bool paged = index.page_table.ndim != 0;
  if (!paged && !a.page_size.is_none()) {
    refuse(PyExc_ValueError, {call.op(), "page_size"}, "is for keys in pages; block_table is missing");
  }
  call.require_same("page_size", a.page_size, index.k.shape[1], "ps of block_keys");
  call.require_same("num_requests", a.num_requests, paged ? index.page_table.shape[0] : index.k.shape[0],
                    paged ? "B of block_table" : "B of block_keys");
  return index;
}

// Keys that a request can have.
int64_t most_keys(const tessera_qsa_index& index) {
  int64_t keys = index.k.shape[1];
  const bool paged = index.page_table.ndim != 0;
  return paged && __builtin_mul_overflow(keys, index.page_table.shape[1], &keys) ? 0 : keys;
}

// [B, Q, entries] or [total_q, entries]. Sizes that the operator will refuse give a tensor that it will not see.
Shape result_shape(const tessera_tensor& q, int64_t entries) {
  return q.ndim == 3 ? Shape{q.shape[0], entries} : Shape{q.shape[0], q.shape[1], entries};
}

nb::object qsa_indexer_mqa_score(nb::handle q_idx, nb::handle block_keys, nb::handle block_table, nb::handle page_size,
                                 nb::handle cu_seqlens_q, nb::handle token_to_req, nb::handle num_requests,
                                 nb::handle query_positions, nb::handle seq_lens_q, nb::handle block_size,
                                 nb::handle scale, nb::handle score_scale, nb::handle weights, nb::handle seq_lens_k,
                                 nb::handle out, nb::handle backend) {
  Call call("qsa_indexer_mqa_score", backend);
  tessera_qsa_indexer_mqa_score_args args{};
  args.index = index_inputs(call, q_idx, block_keys,
                            {block_table, page_size, cu_seqlens_q, token_to_req, num_requests, query_positions,
                             seq_lens_q, block_size, scale, score_scale, weights, seq_lens_k});
  const Shape shape = result_shape(args.index.q, most_keys(args.index));
  const Call::Output scores = call.out("scores", out, kF32, shape, TESSERA_F32);
  args.scores = scores.view;
  call.run(tessera_qsa_indexer_mqa_score, args);
  return call.result(scores);
}

// The lists of `budget` tokens' blocks; of those tokens themselves, and of the tail, if `tokens`.
nb::object select(const char* op, bool tokens, nb::handle q_idx, nb::handle block_keys, nb::handle budget,
                  const LayoutArguments& layout, nb::handle screen, nb::handle out, nb::handle backend) {
  Call call(op, backend);
  tessera_qsa_select_args args{};
  args.index = index_inputs(call, q_idx, block_keys, layout);
  if (!screen.is_none()) {
    if (!PyTuple_Check(screen.ptr()) || nb::len(screen) != 2) {
      refuse(PyExc_TypeError, {op, "screen"}, "is no pair of codes and scales");
    }
    args.screen_codes = call.part({op, "screen_codes"}, screen[0], kI8);
    args.screen_scales = call.part({op, "screen_scales"}, screen[1], kF32);
  }
  const int64_t block = args.index.block_size;
  const int64_t count = call.positive("budget", budget);
  args.topk = count / block;
  if (args.topk == 0) {
    refuse(PyExc_ValueError, {op, "budget"},
           "is " + std::to_string(count) + "; expected at least block_size " + std::to_string(block));
  }
  int64_t width = args.topk;
  if (tokens && (__builtin_mul_overflow(width, block, &width) || __builtin_add_overflow(width, block - 1, &width))) {
    refuse(PyExc_ValueError, {op, "budget"}, "is " + std::to_string(count) + ", more tokens than a list can have");
  }
  const Shape shape = result_shape(args.index.q, width);
  const Call::Output result = call.out(tokens ? "token_indices" : "indices", out, kI32, shape, TESSERA_I32);
  (tokens ? args.token_indices : args.indices) = result.view;
  call.run(Functions<tessera_qsa_select_args>{tessera_qsa_select, tessera_qsa_select_parallel}, args);
  return call.result(result);
}

nb::object qsa_select(nb::handle q_idx, nb::handle block_keys, nb::handle budget, nb::handle block_table,
                      nb::handle page_size, nb::handle cu_seqlens_q, nb::handle token_to_req, nb::handle num_requests,
                      nb::handle query_positions, nb::handle seq_lens_q, nb::handle block_size, nb::handle scale,
                      nb::handle score_scale, nb::handle weights, nb::handle seq_lens_k, nb::handle screen,
                      nb::handle out, nb::handle backend) {
  return select("qsa_select", false, q_idx, block_keys, budget,
                {block_table, page_size, cu_seqlens_q, token_to_req, num_requests, query_positions, seq_lens_q,
                 block_size, scale, score_scale, weights, seq_lens_k},
                screen, out, backend);
}

nb::object qsa_select_tokens(nb::handle q_idx, nb::handle block_keys, nb::handle budget, nb::handle block_table,
                             nb::handle page_size, nb::handle cu_seqlens_q, nb::handle token_to_req,
                             nb::handle num_requests, nb::handle query_positions, nb::handle seq_lens_q,
                             nb::handle block_size, nb::handle scale, nb::handle score_scale, nb::handle weights,
                             nb::handle seq_lens_k, nb::handle screen, nb::handle out, nb::handle backend) {
  return select("qsa_select_tokens", true, q_idx, block_keys, budget,
                {block_table, page_size, cu_seqlens_q, token_to_req, num_requests, query_positions, seq_lens_q,
                 block_size, scale, score_scale, weights, seq_lens_k},
                screen, out, backend);
}

nb::object qsa_mqa_prefill(nb::handle q, nb::handle k, nb::handle row_starts, nb::handle row_ends,
                           nb::handle score_scale, nb::handle scale, nb::handle weights, nb::handle out,
                           nb::handle backend) {
  Call call("qsa_mqa_prefill", backend);
  tessera_qsa_mqa_prefill_args args{};
  args.q = call.input("q", q, kFloats);
  args.k = call.input("k", k, kFloats);
  args.row_starts = call.input("row_starts", row_starts, kI32);
  args.row_ends = call.input("row_ends", row_ends, kI32);
  args.weights = call.optional_input("weights", weights, kF32);
  args.scale = call.optional_scale(scale, score_scale);
  const Call::Output scores = call.out("scores", out, kF32, {args.q.shape[0], args.k.shape[0]}, TESSERA_F32);
  args.scores = scores.view;
  call.run(tessera_qsa_mqa_prefill, args);
  return call.result(scores);
}

nb::object qsa_mqa_decode(nb::handle q, nb::handle k_cache, nb::handle page_table, nb::handle context_lens,
                          nb::handle max_model_len, nb::handle score_scale, nb::handle scale, nb::handle weights,
                          nb::handle out, nb::handle backend) {
  Call call("qsa_mqa_decode", backend);
  tessera_qsa_mqa_decode_args args{};
  args.q = call.input("q", q, kFloats);
  args.k_cache = call.input("k_cache", k_cache, kFloats);
  args.page_table = call.input("page_table", page_table, kI32);
  args.context_lens = call.input("context_lens", context_lens, kI32);
  args.weights = call.optional_input("weights", weights, kF32);
  args.scale = call.optional_scale(scale, score_scale);
  int64_t rows = 0;  // where there are more than can be counted, which the operator refuses
  if (__builtin_mul_overflow(args.q.shape[0], args.q.ndim == 4 ? args.q.shape[1] : 1, &rows)) rows = 0;
  const int64_t keys = call.positive("max_model_len", max_model_len);
  const Call::Output scores = call.out("scores", out, kF32, {rows, keys}, TESSERA_F32);
  args.scores = scores.view;
  call.run(tessera_qsa_mqa_decode, args);
  return call.result(scores);
}

nb::object topk_blocks(nb::handle scores, nb::handle k, nb::handle out, nb::handle backend) {
  Call call("topk_blocks", backend);
  tessera_topk_blocks_args args{};
  args.scores = call.input("scores", scores, kF32);
  Shape shape = shape_of(args.scores);
  shape.back() = call.positive("k", k);
  const Call::Output indices = call.out("indices", out, kI32, shape, TESSERA_I32);
  args.indices = indices.view;
  call.run(tessera_topk_blocks, args);
  return call.result(indices);
}

}  // namespace

void bind_qsa_index(nb::module_& m) {
  bind(m, "qsa_indexer_mqa_score", qsa_indexer_mqa_score);
  bind(m, "qsa_select", qsa_select);
  bind(m, "qsa_select_tokens", qsa_select_tokens);
  bind(m, "qsa_mqa_prefill", qsa_mqa_prefill);
  bind(m, "qsa_mqa_decode", qsa_mqa_decode);
  bind(m, "topk_blocks", topk_blocks);
}

}  // namespace tessera::python
