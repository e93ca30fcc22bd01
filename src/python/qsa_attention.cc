// Attention over token lists: Python's arguments in the order of the signature in tessera/_qsa_attention.py, by position.
#include <string>

#include "python/attention.h"
#include "python/call.h"
#include "python/module.h"

namespace tessera::python {
namespace {

using Args = tessera_qsa_sparse_attention_args;

constexpr int64_t kMostBlocks = 512;
constexpr Functions<Args> kQsaSparseAttentionFunctions = {tessera_qsa_sparse_attention,
                                                          tessera_qsa_sparse_attention_parallel};

struct TensorArguments {
  nb::handle token_indices, selected_kv_indices, cu_seqlens_q, token_to_req, cu_seqlens_k, seq_lens_q, seq_lens_k,
      query_positions, block_table, gate;
};

Args tensor_inputs(Call& call, nb::handle query, nb::handle key, nb::handle value, const TensorArguments& a) {
  Args args{};
  args.q = call.input("query", query, kFloats);
  args.k = call.input("key", key, kFloats);
  args.v = call.input("value", value, kFloats);
  args.token_indices = call.optional_input("token_indices", a.token_indices, kI32);
  args.selected_kv_indices = call.optional_input("selected_kv_indices", a.selected_kv_indices, kI32);
  args.cu_seqlens_q = call.optional_input("cu_seqlens_q", a.cu_seqlens_q, kI32);
  args.token_to_req = call.optional_input("token_to_req", a.token_to_req, kI32);
  args.query_positions = call.optional_input("query_positions", a.query_positions, kI32);
  args.seq_lens_q = call.optional_input("seq_lens_q", a.seq_lens_q, kI32);
  args.cu_seqlens_k = call.optional_input("cu_seqlens_k", a.cu_seqlens_k, kI32);
  args.seq_lens_k = call.optional_input("seq_lens_k", a.seq_lens_k, kI32);
  args.page_table = call.optional_input("block_table", a.block_table, kI32);
  args.gate = call.optional_input("gate", a.gate, "query's dtype or float32");
  return args;
}

void check_requests(const Call& call, nb::handle num_requests, const Args& args) {
  const bool paged = args.page_table.ndim != 0;
  if (args.selected_kv_indices.ndim != 0 && !num_requests.is_none()) {
    refuse(PyExc_ValueError, {call.op(), "num_requests"}, "and selected_kv_indices exclude each other");
  }
  int64_t requests = args.k.shape[0];
  const char* what = "B of key";
  if (paged) {
    requests = args.page_table.shape[0];
    what = "B of block_table";
  } else if (args.cu_seqlens_k.ndim != 0) {
    requests = args.cu_seqlens_k.shape[0] - 1;
    what = "B of cu_seqlens_k";
  }
  call.require_same("num_requests", num_requests, requests, what);
}

// The blocks that token_indices were made of: of no use here, and never looked into, but their sizes have to agree.
void check_hint(Call& call, nb::handle block_indices, const Args& args) {
  if (block_indices.is_none()) return;
  const Argument hint = {call.op(), "block_indices"};
  const tessera_tensor blocks = call.input("block_indices", block_indices, kI32);
  if (blocks.dtype != TESSERA_I32) {
    refuse(PyExc_TypeError, hint, std::string("is ") + dtype_name(blocks.dtype) + "; expected int32");
  }
  const tessera_tensor& tokens = args.token_indices;
  if (tokens.ndim == 0) refuse(PyExc_ValueError, hint, "needs the token_indices that were made of it");
  Shape rows = shape_of(blocks), token_rows = shape_of(tokens);
  const int64_t count = rows.back(), width = token_rows.back();
  rows.pop_back();
  token_rows.pop_back();
  if (rows != token_rows) refuse(PyExc_ValueError, hint, "has other rows than token_indices");
  if (count < 1 || count > kMostBlocks) {
    refuse(PyExc_ValueError, hint, "has " + std::to_string(count) + " blocks a row; expected 1 to 512");
  }
  if (width != 4 * count + 3) {
    refuse(PyExc_ValueError, {call.op(), "token_indices"},
           "has " + std::to_string(width) + " entries a row; expected " + std::to_string(4 * count + 3) + " for the " +
               std::to_string(count) + " blocks of block_indices");
  }
}

const float* scale_of(Call& call, nb::handle scale, nb::handle softmax_scale) {
  if (!scale.is_none() && !softmax_scale.is_none()) {
    refuse(PyExc_ValueError, {call.op(), "scale"}, "and softmax_scale exclude each other");
  }
  return scale.is_none() ? call.optional_float("softmax_scale", softmax_scale) : call.optional_float("scale", scale);
}

void check_unscaled(const Call& call, const char* name, nb::handle scale) {
  const double number = call.number(name, scale);
  if (number != 1) {
    refuse(PyExc_ValueError, {call.op(), name}, "is " + std::to_string(number) + "; expected 1: nothing is quantised");
  }
}

// What is computed with is decided by query's dtype.
void check_compute_dtype(const Call& call, nb::handle dtype, tessera_dtype of_query) {
  if (dtype.is_none()) return;
  const Argument argument = {call.op(), "compute_dtype"};
  const nb::object name = nb::module_::import_("tessera._tensors").attr("dtype_name")(dtype);
  if (name.is_none()) {
    refuse(PyExc_TypeError, argument, "is " + std::string(nb::str(nb::repr(dtype)).c_str()) + "; expected a dtype");
  }
  if (name.equal(nb::str(dtype_name(of_query)))) return;
  refuse(PyExc_NotImplementedError, argument,
         "is " + std::string(nb::str(name).c_str()) + "; expected query's dtype, " + dtype_name(of_query));
}

// Runs the call, or explains what it would do.
template <bool kExplain>
nb::object qsa_sparse_attention(nb::handle query, nb::handle key, nb::handle value, nb::handle token_indices,
                                nb::handle block_indices, nb::handle cu_seqlens_q, nb::handle token_to_req,
                                nb::handle num_requests, nb::handle cu_seqlens_k, nb::handle seq_lens_q,
                                nb::handle seq_lens_k, nb::handle query_positions, nb::handle block_table,
                                nb::handle page_size, nb::handle scale, nb::handle gate, nb::handle num_splits,
                                nb::handle return_lse, nb::handle backend, nb::handle warp_specialized,
                                nb::handle assume_compact_blocks, nb::handle out, nb::handle selected_kv_indices,
                                nb::handle softmax_scale, nb::handle k_scale, nb::handle v_scale,
                                nb::handle compute_dtype, nb::handle lse) {
  Call call("qsa_sparse_attention", backend);
  Args args = tensor_inputs(call, query, key, value,
                            {token_indices, selected_kv_indices, cu_seqlens_q, token_to_req, cu_seqlens_k, seq_lens_q,
                             seq_lens_k, query_positions, block_table, gate});
  args.page_size = page_size.is_none() ? 0 : call.positive("page_size", page_size);
  check_requests(call, num_requests, args);
  check_hint(call, block_indices, args);
  args.softmax_scale = scale_of(call, scale, softmax_scale);
  args.num_splits = num_splits.is_none() ? 0 : call.positive("num_splits", num_splits);
  check_unscaled(call, "k_scale", k_scale);
  check_unscaled(call, "v_scale", v_scale);
  check_compute_dtype(call, compute_dtype, args.q.dtype);
  call.flag("warp_specialized", warp_specialized);
  call.flag("assume_compact_blocks", assume_compact_blocks);
  const bool returns_lse = call.flag("return_lse", return_lse);
  if constexpr (kExplain) return explain(call, tessera_qsa_sparse_attention_explain, args, out, lse);
  return attend(call, kQsaSparseAttentionFunctions, args, returns_lse, out, lse);
}

}  // namespace

void bind_qsa_attention(nb::module_& m) {
  bind(m, "qsa_sparse_attention", qsa_sparse_attention<false>);
  bind(m, "qsa_sparse_attention_explain", qsa_sparse_attention<true>);
}

}  // namespace tessera::python
