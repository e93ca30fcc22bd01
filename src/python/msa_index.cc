// The indexer of MSA: Python's arguments in the order of the signatures in tessera/_msa_index.py, by position.
#include <algorithm>

#include "python/call.h"
#include "python/module.h"

namespace tessera::python {
namespace {

tessera_msa_index index_inputs(Call& call, nb::handle q, nb::handle k, nb::handle block_size, nb::handle q_offset,
                               nb::handle reduce_heads, nb::handle cu_seqlens_q, nb::handle cu_seqlens_k,
                               nb::handle page_table, nb::handle seqused_k) {
  tessera_msa_index index{};
  index.q = call.input("q", q, kFloats);
  index.k = call.input("k", k, kFloats);
  index.block_size = call.positive("block_size", block_size);
  index.reduce_heads = call.flag("reduce_heads", reduce_heads);
  tessera_sequences& s = index.sequences;
  s.cu_seqlens_q = call.optional_input("cu_seqlens_q", cu_seqlens_q, kI32);
  s.cu_seqlens_k = call.optional_input("cu_seqlens_k", cu_seqlens_k, kI32);
  s.page_table = call.optional_input("page_table", page_table, kI32);
  s.seqused_k = call.optional_input("seqused_k", seqused_k, kI32);
  const bool packed = s.cu_seqlens_q.ndim != 0;
  s.q_offset = call.q_offset(q_offset, packed ? std::max<int64_t>(s.cu_seqlens_q.shape[0] - 1, 0) : index.q.shape[0]);
  return index;
}

// entry(i) of all entries of an int32 vector; nothing of a tensor that the operator will refuse.
template <class Entry>
void for_each(const tessera_tensor& t, const Entry& entry) {
  if (t.ndim != 1 || t.dtype != TESSERA_I32 || t.data == nullptr) return;
  for (int64_t i = 0; i < t.shape[0]; ++i) entry(static_cast<const int32_t*>(t.data)[i * t.stride[0]]);
}

// The most keys that a request has.
int64_t most_keys(const tessera_msa_index& index) {
  const tessera_sequences& s = index.sequences;
  int64_t most = 0;
  if (s.seqused_k.ndim != 0) {
    const int64_t page_size = index.k.shape[index.k.ndim == 5 ? 3 : 2];
    int64_t capacity = 0;
    if (__builtin_mul_overflow(s.page_table.shape[1], page_size, &capacity)) capacity = INT64_MAX;
    for_each(s.seqused_k, [&](int64_t used) { most = std::max(most, std::min(used, capacity)); });
  } else if (s.cu_seqlens_k.ndim != 0) {
    int64_t begin = -1;  // of no request yet
    for_each(s.cu_seqlens_k, [&](int64_t end) {
      if (begin >= 0 && end <= index.k.shape[0]) most = std::max(most, end - begin);
      begin = end;
    });
  } else {
    most = index.k.shape[1];
  }
  return most;
}

// [B, Hi, Sq, entries] or [Hi, total_q, entries]. Sizes that the operator will refuse give a tensor that it will not see.
Shape result_shape(const tessera_msa_index& index, int64_t entries) {
  const int64_t* const s = index.q.shape;
  const bool packed = index.q.ndim == 3;
  const int64_t heads = index.reduce_heads != 0 ? 1 : s[packed ? 1 : 2];
  return packed ? Shape{heads, s[0], entries} : Shape{s[0], heads, s[1], entries};
}

nb::object msa_block_scores(nb::handle q, nb::handle k, nb::handle block_size, nb::handle q_offset,
                            nb::handle reduce_heads, nb::handle cu_seqlens_q, nb::handle cu_seqlens_k,
                            nb::handle page_table, nb::handle seqused_k, nb::handle out, nb::handle backend) {
  Call call("msa_block_scores", backend);
  tessera_msa_block_scores_args args{};
  args.index =
      index_inputs(call, q, k, block_size, q_offset, reduce_heads, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k);
  const int64_t keys = out.is_none() ? most_keys(args.index) : 0;
  const int64_t blocks = keys / args.index.block_size + (keys % args.index.block_size != 0 ? 1 : 0);
  const Call::Output scores = call.out("scores", out, kF32, result_shape(args.index, blocks), TESSERA_F32);
  args.scores = scores.view;
  call.run(tessera_msa_block_scores, args);
  return call.result(scores);
}

nb::object msa_select(nb::handle q, nb::handle k, nb::handle topk, nb::handle local_blocks, nb::handle init_blocks,
                      nb::handle block_size, nb::handle q_offset, nb::handle reduce_heads, nb::handle cu_seqlens_q,
                      nb::handle cu_seqlens_k, nb::handle page_table, nb::handle seqused_k, nb::handle out,
                      nb::handle backend) {
  Call call("msa_select", backend);
  tessera_msa_select_args args{};
  args.index =
      index_inputs(call, q, k, block_size, q_offset, reduce_heads, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k);
  args.topk = call.integer("topk", topk);
  args.local_blocks = call.integer("local_blocks", local_blocks);
  args.init_blocks = call.integer("init_blocks", init_blocks);
  const Shape shape = result_shape(args.index, std::max<int64_t>(args.topk, 0));
  const Call::Output indices = call.out("indices", out, kI32, shape, TESSERA_I32);
  args.indices = indices.view;
  call.run(Functions<tessera_msa_select_args>{tessera_msa_select, tessera_msa_select_parallel}, args);
  return call.result(indices);
}

}  // namespace

void bind_msa_index(nb::module_& m) {
  bind(m, "msa_block_scores", msa_block_scores);
  bind(m, "msa_select", msa_select);
}

}  // namespace tessera::python
