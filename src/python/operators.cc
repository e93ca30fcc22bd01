// The operators, one function each: Python's arguments in the order of the signatures in tessera/_ops.py, by position.
#include <algorithm>
#include <cstring>

#include "python/attention.h"
#include "python/call.h"
#include "python/module.h"

namespace tessera::python {
namespace {

// ---- Block-sparse attention ----

constexpr Functions<tessera_block_sparse_gqa_prefill_args> kBlockSparseGqaPrefillFunctions = {
    tessera_block_sparse_gqa_prefill, tessera_block_sparse_gqa_prefill_parallel};

tessera_block_sparse_gqa_prefill_args prefill_inputs(Call& call, nb::handle q, nb::handle k, nb::handle v,
                                                     nb::handle kv_indices, nb::handle block_size, nb::handle block_q,
                                                     nb::handle causal, nb::handle softmax_scale, nb::handle q_offset,
                                                     nb::handle page_table, nb::handle seqused_k) {
  auto args = attention_inputs<tessera_block_sparse_gqa_prefill_args>(call, q, k, v, block_size, causal, softmax_scale);
  args.kv_indices = call.input("kv_indices", kv_indices, kI32);
  args.block_q = block_q.is_none() ? 0 : call.positive("block_q", block_q);
  args.q_offset = call.q_offset(q_offset, args.q.shape[0]);
  args.page_table = call.optional_input("page_table", page_table, kI32);
  args.seqused_k = call.optional_input("seqused_k", seqused_k, kI32);
  return args;
}

nb::object block_sparse_gqa_prefill(nb::handle q, nb::handle k, nb::handle v, nb::handle kv_indices,
                                    nb::handle block_size, nb::handle block_q, nb::handle causal,
                                    nb::handle softmax_scale, nb::handle q_offset, nb::handle page_table,
                                    nb::handle seqused_k, nb::handle return_lse, nb::handle out, nb::handle lse,
                                    nb::handle backend) {
  Call call("block_sparse_gqa_prefill", backend);
  auto args = prefill_inputs(call, q, k, v, kv_indices, block_size, block_q, causal, softmax_scale, q_offset,
                             page_table, seqused_k);
  return attend(call, kBlockSparseGqaPrefillFunctions, args, call.flag("return_lse", return_lse), out, lse);
}

nb::object block_sparse_gqa_prefill_state(nb::handle q, nb::handle k, nb::handle v, nb::handle kv_indices,
                                          nb::handle block_size, nb::handle block_q, nb::handle causal,
                                          nb::handle softmax_scale, nb::handle q_offset, nb::handle page_table,
                                          nb::handle seqused_k, nb::handle out, nb::handle backend) {
  Call call("block_sparse_gqa_prefill_state", backend);
  auto args = prefill_inputs(call, q, k, v, kv_indices, block_size, block_q, causal, softmax_scale, q_offset,
                             page_table, seqused_k);
  const auto given = call.outs(out, 3, "tuple of o, l and m");
  const Call::Output o = call.output("state_o", given[0], kF32, out_shape(args.q, args.v), TESSERA_F32);
  const Call::Output l = call.output("state_l", given[1], kF32, row_shape(args.q), TESSERA_F32);
  const Call::Output m = call.output("state_m", given[2], kF32, row_shape(args.q), TESSERA_F32);
  args.state_o = o.view;
  args.state_l = l.view;
  args.state_m = m.view;
  call.run(tessera_block_sparse_gqa_prefill_state, args);
  return nb::make_tuple(call.result(o), call.result(l), call.result(m));
}

// Takes the arguments of the call that it explains, and runs nothing.
nb::object block_sparse_gqa_prefill_explain(nb::handle q, nb::handle k, nb::handle v, nb::handle kv_indices,
                                            nb::handle block_size, nb::handle block_q, nb::handle causal,
                                            nb::handle softmax_scale, nb::handle q_offset, nb::handle page_table,
                                            nb::handle seqused_k, nb::handle, nb::handle out, nb::handle lse,
                                            nb::handle backend) {
  Call call("block_sparse_gqa_prefill", backend);
  auto args = prefill_inputs(call, q, k, v, kv_indices, block_size, block_q, causal, softmax_scale, q_offset,
                             page_table, seqused_k);
  return explain(call, tessera_block_sparse_gqa_prefill_explain, args, out, lse);
}

// ---- Merging ----

using Views = std::vector<tessera_tensor>;

struct Part {
  const char* name;
  const char* dtypes;
};

nb::object tuple_of(nb::handle value, const Argument& argument, const char* expected) {
  nb::object tuple;
  if (!is_tensor(value)) tuple = nb::steal(PySequence_Tuple(value.ptr()));
  if (tuple.is_valid()) return tuple;
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();  // a generator's own
  PyErr_Clear();
  refuse(PyExc_TypeError, argument, std::string("is not a sequence; expected ") + expected);
}

// A list of tuples of tensors as one list of views per position in the tuple.
std::vector<Views> unzip(Call& call, const char* name, nb::handle states, const char* expected,
                         const std::vector<Part>& kinds) {
  const nb::object list = tuple_of(states, {call.op(), name}, expected);
  if (nb::len(list) == 0) refuse(PyExc_ValueError, {call.op(), name}, std::string("is empty; expected ") + expected);
  std::vector<Views> views(kinds.size());
  for (size_t i = 0; i < nb::len(list); ++i) {
    const Argument state{call.op(), name, static_cast<int64_t>(i)};
    const nb::object parts = tuple_of(list[i], state, expected);
    if (nb::len(parts) != kinds.size()) {
      refuse(PyExc_ValueError, state, "has " + std::to_string(nb::len(parts)) + " entries; expected " + expected);
    }
    for (size_t j = 0; j < kinds.size(); ++j) {
      const Argument part{call.op(), name, state.index, kinds[j].name};
      views[j].push_back(call.part(part, nb::object(parts[j]), kinds[j].dtypes));
    }
  }
  return views;
}

nb::object cp_merge(nb::handle states, const char* output_dtype, nb::handle out_given, nb::handle backend) {
  Call call("cp_merge", backend);
  const auto views = unzip(call, "states", states, "at least one (o, l, m)", {{"o", kF32}, {"l", kF32}, {"m", kF32}});
  const Shape shape = shape_of(views[0][0]);
  const Call::Output out = out_given.is_none() ? call.new_output(shape, output_dtype)
                                               : call.output("out", out_given, kFloats, shape, TESSERA_OTHER_DTYPE);
  if (std::strcmp(dtype_name(out.view.dtype), output_dtype) != 0) {
    refuse(PyExc_TypeError, {call.op(), "out"},
           std::string("is ") + dtype_name(out.view.dtype) + "; expected output_dtype, " + output_dtype);
  }
  const tessera_cp_merge_args args{views[0].data(), views[1].data(), views[2].data(),
                                   static_cast<int64_t>(views[0].size()), out.view};
  call.run(tessera_cp_merge, args);
  return call.result(out);
}

nb::object merge_states(nb::handle partials, nb::handle out_given, nb::handle backend) {
  Call call("merge_states", backend);
  const auto views = unzip(call, "partials", partials, "at least one (out, lse)", {{"out", kFloats}, {"lse", kF32}});
  const auto given = call.outs(out_given, 2, "pair of out and lse");
  const Call::Output out = call.output("out", given[0], kFloats, shape_of(views[0][0]), views[0][0].dtype);
  const Call::Output lse = call.output("lse", given[1], kF32, shape_of(views[1][0]), TESSERA_F32);
  const tessera_merge_states_args args{views[0].data(), views[1].data(), static_cast<int64_t>(views[0].size()),
                                       out.view, lse.view};
  call.run(tessera_merge_states, args);
  return nb::make_tuple(call.result(out), call.result(lse));
}

// ---- Selection ----

// The given out, or a new [B, Hkv, nQ, topk]. Sizes that the operator will refuse give an empty tensor.
template <class Args>
Call::Output indices_of(Call& call, nb::handle out, const Args& args) {
  const int64_t query_blocks = (args.q.shape[1] + args.block_q - 1) / args.block_q;
  const bool paged = args.page_table.ndim != 0 || args.seqused_k.ndim != 0;
  const int64_t kv_heads = args.k.shape[paged ? 1 : 2];
  const Shape shape = {args.q.shape[0], kv_heads, query_blocks, std::max<int64_t>(args.topk, 0)};
  return call.out("indices", out, kI32, shape, TESSERA_I32);
}

nb::object moba_select(nb::handle q, nb::handle k, nb::handle topk, nb::handle block_size, nb::handle block_q,
                       nb::handle local_blocks, nb::handle init_blocks, nb::handle q_offset, nb::handle page_table,
                       nb::handle seqused_k, nb::handle out, nb::handle backend) {
  Call call("moba_select", backend);
  tessera_moba_select_args args{};
  args.q = call.input("q", q, kFloats);
  args.k = call.input("k", k, kFloats);
  args.topk = call.integer("topk", topk);
  args.block_size = call.positive("block_size", block_size);
  args.block_q = call.positive("block_q", block_q);
  args.local_blocks = call.integer("local_blocks", local_blocks);
  args.init_blocks = call.integer("init_blocks", init_blocks);
  args.q_offset = call.q_offset(q_offset, args.q.shape[0]);
  args.page_table = call.optional_input("page_table", page_table, kI32);
  args.seqused_k = call.optional_input("seqused_k", seqused_k, kI32);
  const Call::Output indices = indices_of(call, out, args);
  args.indices = indices.view;
  call.run(tessera_moba_select, args);
  return call.result(indices);
}

nb::object mass_select(nb::handle q, nb::handle k, nb::handle topk, nb::handle block_size, nb::handle block_q,
                       nb::handle stride, nb::handle local_blocks, nb::handle init_blocks, nb::handle softmax_scale,
                       nb::handle q_offset, nb::handle page_table, nb::handle seqused_k, nb::handle out,
                       nb::handle backend) {
  Call call("mass_select", backend);
  tessera_mass_select_args args{};
  args.q = call.input("q", q, kFloats);
  args.k = call.input("k", k, kFloats);
  args.topk = call.integer("topk", topk);
  args.block_size = call.positive("block_size", block_size);
  args.block_q = call.positive("block_q", block_q);
  args.stride = call.positive("stride", stride);
  args.local_blocks = call.integer("local_blocks", local_blocks);
  args.init_blocks = call.integer("init_blocks", init_blocks);
  args.softmax_scale = call.optional_float("softmax_scale", softmax_scale);
  args.q_offset = call.q_offset(q_offset, args.q.shape[0]);
  args.page_table = call.optional_input("page_table", page_table, kI32);
  args.seqused_k = call.optional_input("seqused_k", seqused_k, kI32);
  const Call::Output indices = indices_of(call, out, args);
  args.indices = indices.view;
  call.run(tessera_mass_select, args);
  return call.result(indices);
}

}  // namespace

void bind_operators(nb::module_& m) {
  bind(m, "block_sparse_gqa_prefill", block_sparse_gqa_prefill);
  bind(m, "block_sparse_gqa_prefill_state", block_sparse_gqa_prefill_state);
  bind(m, "block_sparse_gqa_prefill_explain", block_sparse_gqa_prefill_explain);
  bind(m, "cp_merge", cp_merge);
  bind(m, "merge_states", merge_states);
  bind(m, "moba_select", moba_select);
  bind(m, "mass_select", mass_select);
}

}  // namespace tessera::python
