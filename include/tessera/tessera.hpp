// tessera.hpp: the C ABI of tessera.h for C++20. Views are made with tensor(), arguments with designated initialisers,
// errors are exceptions. Header-only; nothing is copied and nothing is owned. For tessera_<op> of tessera.h there are a
// struct Op, whose members are named and explained there, and functions op(), op_workspace_size() and op_explain() as far
// as C has them, which take it and a Context.
//
//   std::vector<float> q(...), k(...), v(...), out(...);
//   std::vector<int32_t> blocks = {0, 2, 5};
//   tessera::block_sparse_gqa_prefill({.q = tessera::tensor(q.data(), {1, Sq, 8, 64}),
//                                      .k = tessera::tensor(k.data(), {1, Sk, 2, 64}),
//                                      .v = tessera::tensor(v.data(), {1, Sk, 2, 64}),
//                                      .kv_indices = tessera::tensor(blocks.data(), {1, 1, 3}),
//                                      .block_q = Sq,
//                                      .out = tessera::tensor(out.data(), {1, Sq, 8, 64})});
#ifndef TESSERA_TESSERA_HPP_
#define TESSERA_TESSERA_HPP_

#if __cplusplus < 202002L
#error "tessera.hpp needs C++20 (-std=c++20, or CMAKE_CXX_STANDARD 20); tessera.h does with C99 or any C++"
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "tessera/tessera.h"

namespace tessera {

// ---- Errors -------------------------------------------------------------------------------------------------------

// Base of every exception of this header. Each is also the standard exception that fits it, so that
// `catch (const std::exception&)` works without knowing this header.
class Error {
 public:
  Error(tessera_status status, std::string message) : status_(status), message_(std::move(message)) {}
  virtual ~Error() = default;
  tessera_status status() const noexcept { return status_; }
  const std::string& message() const noexcept { return message_; }  // names the operator and the argument

 private:
  tessera_status status_;
  std::string message_;
};

struct InvalidArgument : std::invalid_argument, Error {
  explicit InvalidArgument(const std::string& message)
      : std::invalid_argument(message), Error(TESSERA_INVALID_ARGUMENT, message) {}
};
struct TypeError : std::logic_error, Error {
  explicit TypeError(const std::string& message) : std::logic_error(message), Error(TESSERA_TYPE_ERROR, message) {}
};
struct NotImplemented : std::logic_error, Error {
  explicit NotImplemented(const std::string& message)
      : std::logic_error(message), Error(TESSERA_NOT_IMPLEMENTED, message) {}
};
struct OutOfMemory : std::bad_alloc, Error {
  explicit OutOfMemory(const std::string& message) : Error(TESSERA_OUT_OF_MEMORY, message) {}
  const char* what() const noexcept override { return message().c_str(); }
};
struct InternalError : std::runtime_error, Error {
  explicit InternalError(const std::string& message) : std::runtime_error(message), Error(TESSERA_INTERNAL, message) {}
};

// Throws what the status of a C call stands for.
inline void throw_if_failed(tessera_status status) {
  if (status == TESSERA_OK) return;
  const std::string message = tessera_last_error();
  switch (status) {
    case TESSERA_INVALID_ARGUMENT: throw InvalidArgument(message);
    case TESSERA_TYPE_ERROR: throw TypeError(message);
    case TESSERA_NOT_IMPLEMENTED: throw NotImplemented(message);
    case TESSERA_OUT_OF_MEMORY: throw OutOfMemory(message);
    default: throw InternalError(message);
  }
}

// ---- Tensors ------------------------------------------------------------------------------------------------------

// Value-initialised: not given.
using Tensor = tessera_tensor;

// Tags for the 16-bit formats, to be the element type of a buffer.
struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

// Specialise it for other types of the same layout: template <>
// inline constexpr tessera_dtype tessera::dtype_of<my::half> = TESSERA_F16;
template <class T>
inline constexpr tessera_dtype dtype_of = TESSERA_OTHER_DTYPE;
template <>
inline constexpr tessera_dtype dtype_of<float> = TESSERA_F32;
template <>
inline constexpr tessera_dtype dtype_of<bfloat16> = TESSERA_BF16;
template <>
inline constexpr tessera_dtype dtype_of<float16> = TESSERA_F16;
template <>
inline constexpr tessera_dtype dtype_of<int32_t> = TESSERA_I32;
template <>
inline constexpr tessera_dtype dtype_of<int8_t> = TESSERA_I8;

using Sizes = std::initializer_list<int64_t>;

// A view of `data`; strides count elements, and without them the tensor is dense and row-major. Inputs are only read,
// whatever the pointer's constness.
inline Tensor tensor(const void* data, tessera_dtype dtype, Sizes shape, Sizes strides = {}) {
  if (shape.size() > TESSERA_MAX_DIMS) throw InvalidArgument("tensor: more than TESSERA_MAX_DIMS axes");
  if (strides.size() != 0 && strides.size() != shape.size()) throw InvalidArgument("tensor: one stride for each axis");
  Tensor t = tessera_dense(data, dtype, static_cast<int32_t>(shape.size()), shape.begin());
  std::copy(strides.begin(), strides.end(), t.stride);
  return t;
}

template <class T>
Tensor tensor(T* data, Sizes shape, Sizes strides = {}) {
  constexpr tessera_dtype dtype = dtype_of<std::remove_cv_t<T>>;
  static_assert(dtype != TESSERA_OTHER_DTYPE, "specialise tessera::dtype_of, or pass the dtype");
  return tensor(data, dtype, shape, strides);
}

// ---- Context ------------------------------------------------------------------------------------------------------

// The library's pool, at most n threads of it.
inline tessera_executor threads(int32_t n) { return {TESSERA_EXECUTOR_THREADS, n, 0, 0, nullptr, nullptr}; }

// This call does part i of n; the host calls all of them, in any order.
inline tessera_executor part(int32_t i, int32_t n) { return {TESSERA_EXECUTOR_PART, 0, i, n, nullptr, nullptr}; }

// The host's threads: run(n, body) calls body(i) for every i in [0, n), at most num_threads at once, and returns when
// all are done. `run` is referred to, not copied.
template <class Run>
tessera_executor parallel_for(Run& run, int32_t num_threads) {
  const tessera_parallel_for call = [](void* host, int32_t n, void (*body)(void*, int32_t), void* arg) {
    (*static_cast<Run*>(host))(n, [body, arg](int32_t i) { body(arg, i); });
  };
  return {TESSERA_EXECUTOR_PARALLEL_FOR, num_threads, 0, 0, call, &run};
}

struct Context {
  tessera_executor executor = {};
  tessera_backend backend = TESSERA_BACKEND_NATIVE;
  const char* variant = nullptr;
  std::span<std::byte> workspace = {};

  tessera_context c() const { return {executor, backend, variant, workspace.data(), workspace.size()}; }
};

// ---- How operators are called --------------------------------------------------------------------------------------

namespace detail {
template <class Args>
void run(tessera_status (*op)(const Args*, const tessera_context*), const std::type_identity_t<Args>& args,
         const Context& context) {
  const tessera_context c = context.c();
  throw_if_failed(op(&args, &c));
}

template <class Args>
size_t workspace_size(tessera_status (*op)(const Args*, const tessera_context*, size_t*),
                      const std::type_identity_t<Args>& args, const Context& context) {
  const tessera_context c = context.c();
  size_t bytes = 0;
  throw_if_failed(op(&args, &c, &bytes));
  return bytes;
}

template <class Args>
std::string explain(tessera_status (*op)(const Args*, const tessera_context*, char*, size_t),
                    const std::type_identity_t<Args>& args, const Context& context) {
  const tessera_context c = context.c();
  char text[4096] = "";
  throw_if_failed(op(&args, &c, text, sizeof text));
  return text;
}
}  // namespace detail

// ---- The KV cache ---------------------------------------------------------------------------------------------------

struct AppendKv {
  Tensor k = {};
  Tensor v = {};  // absent with v_cache
  Tensor slots = {};
  Tensor k_cache = {};
  Tensor v_cache = {};
};
inline void append_kv(const AppendKv& a, const Context& context = {}) {
  detail::run(tessera_append_kv, {a.k, a.v, a.slots, a.k_cache, a.v_cache}, context);
}

// ---- Block-sparse attention -----------------------------------------------------------------------------------------

struct BlockSparseGqaPrefill {
  Tensor q = {};
  Tensor k = {};
  Tensor v = {};
  Tensor kv_indices = {};
  int64_t block_size = 128;
  int64_t block_q = 0;  // 0: block_size
  bool causal = true;
  std::optional<float> softmax_scale = {};
  Tensor q_offset = {};
  Tensor page_table = {};
  Tensor seqused_k = {};
  Tensor out = {};      // block_sparse_gqa_prefill
  Tensor lse = {};      // block_sparse_gqa_prefill
  Tensor state_o = {};  // block_sparse_gqa_prefill_state
  Tensor state_l = {};  // block_sparse_gqa_prefill_state
  Tensor state_m = {};  // block_sparse_gqa_prefill_state

  // Points into this object.
  tessera_block_sparse_gqa_prefill_args c() const {
    const tessera_mask mask = causal ? TESSERA_MASK_CAUSAL : TESSERA_MASK_NONE;
    const float* scale = softmax_scale ? &*softmax_scale : nullptr;
    return {q,        k,          v,         kv_indices, block_size, block_q, mask,    scale,
            q_offset, page_table, seqused_k, out,        lse,        state_o, state_l, state_m};
  }
};

inline void block_sparse_gqa_prefill(const BlockSparseGqaPrefill& args, const Context& context = {}) {
  detail::run(tessera_block_sparse_gqa_prefill, args.c(), context);
}
inline void block_sparse_gqa_prefill_state(const BlockSparseGqaPrefill& args, const Context& context = {}) {
  detail::run(tessera_block_sparse_gqa_prefill_state, args.c(), context);
}
inline size_t block_sparse_gqa_prefill_workspace_size(const BlockSparseGqaPrefill& args, const Context& context = {}) {
  return detail::workspace_size(tessera_block_sparse_gqa_prefill_workspace_size, args.c(), context);
}
inline std::string block_sparse_gqa_prefill_explain(const BlockSparseGqaPrefill& args, const Context& context = {}) {
  return detail::explain(tessera_block_sparse_gqa_prefill_explain, args.c(), context);
}

// Rows and keys of several requests; see tessera_sequences.
struct Sequences {
  Tensor cu_seqlens_q = {};
  int64_t seqlen_q = 0;
  Tensor cu_seqlens_k = {};
  Tensor page_table = {};
  Tensor seqused_k = {};
  Tensor q_offset = {};

  tessera_sequences c() const { return {cu_seqlens_q, seqlen_q, cu_seqlens_k, page_table, seqused_k, q_offset}; }
};

struct MsaSparseAttention {
  Tensor q = {};
  Tensor k = {};
  Tensor v = {};
  Tensor q2k_indices = {};
  Sequences sequences = {};
  int64_t block_size = 128;
  bool causal = true;
  std::optional<float> softmax_scale = {};
  Tensor out = {};
  Tensor lse = {};

  // Points into this object.
  tessera_msa_sparse_attention_args c() const {
    const tessera_mask mask = causal ? TESSERA_MASK_CAUSAL : TESSERA_MASK_NONE;
    const float* scale = softmax_scale ? &*softmax_scale : nullptr;
    return {q, k, v, q2k_indices, sequences.c(), block_size, mask, scale, out, lse};
  }
};

inline void msa_sparse_attention(const MsaSparseAttention& args, const Context& context = {}) {
  detail::run(tessera_msa_sparse_attention, args.c(), context);
}
inline size_t msa_sparse_attention_workspace_size(const MsaSparseAttention& args, const Context& context = {}) {
  return detail::workspace_size(tessera_msa_sparse_attention_workspace_size, args.c(), context);
}
inline std::string msa_sparse_attention_explain(const MsaSparseAttention& args, const Context& context = {}) {
  return detail::explain(tessera_msa_sparse_attention_explain, args.c(), context);
}

struct BlockSparseAttentionSingleQ {
  Tensor q = {};
  Tensor k = {};
  Tensor v = {};
  Tensor kv_indices = {};
  int64_t block_size = 128;
  bool causal = true;
  std::optional<float> softmax_scale = {};
  Tensor q_offset = {};
  Tensor out = {};
  Tensor lse = {};

  // Points into this object.
  tessera_block_sparse_attention_single_q_args c() const {
    const tessera_mask mask = causal ? TESSERA_MASK_CAUSAL : TESSERA_MASK_NONE;
    const float* scale = softmax_scale ? &*softmax_scale : nullptr;
    return {q, k, v, kv_indices, block_size, mask, scale, q_offset, out, lse};
  }
};

inline void block_sparse_attention_single_q(const BlockSparseAttentionSingleQ& args, const Context& context = {}) {
  detail::run(tessera_block_sparse_attention_single_q, args.c(), context);
}
inline size_t block_sparse_attention_single_q_workspace_size(const BlockSparseAttentionSingleQ& args,
                                                             const Context& context = {}) {
  return detail::workspace_size(tessera_block_sparse_attention_single_q_workspace_size, args.c(), context);
}
inline std::string block_sparse_attention_single_q_explain(const BlockSparseAttentionSingleQ& args,
                                                           const Context& context = {}) {
  return detail::explain(tessera_block_sparse_attention_single_q_explain, args.c(), context);
}

// ---- Merging states of disjoint KV shards ---------------------------------------------------------------------------

struct CpMerge {
  std::span<const Tensor> o = {};
  std::span<const Tensor> l = {};
  std::span<const Tensor> m = {};
  Tensor out = {};
};
inline void cp_merge(const CpMerge& args, const Context& context = {}) {
  const size_t n = args.o.size();
  if (args.l.size() != n || args.m.size() != n) throw InvalidArgument("cp_merge: o, l and m differ in length");
  detail::run(tessera_cp_merge, {args.o.data(), args.l.data(), args.m.data(), static_cast<int64_t>(n), args.out},
              context);
}

struct MergeStates {
  std::span<const Tensor> partial_out = {};
  std::span<const Tensor> partial_lse = {};
  Tensor out = {};
  Tensor lse = {};
};
inline void merge_states(const MergeStates& args, const Context& context = {}) {
  const size_t n = args.partial_out.size();
  if (args.partial_lse.size() != n) throw InvalidArgument("merge_states: the partials differ in length");
  detail::run(tessera_merge_states,
              {args.partial_out.data(), args.partial_lse.data(), static_cast<int64_t>(n), args.out, args.lse}, context);
}

// ---- Training-free selection ----------------------------------------------------------------------------------------

struct MobaSelect {
  Tensor q = {};
  Tensor k = {};
  int64_t topk = 0;
  int64_t block_size = 128;
  int64_t block_q = 1;
  int64_t local_blocks = 1;
  int64_t init_blocks = 0;
  Tensor q_offset = {};
  Tensor page_table = {};
  Tensor seqused_k = {};
  Tensor indices = {};

  tessera_moba_select_args c() const {
    return {q, k, topk, block_size, block_q, local_blocks, init_blocks, q_offset, page_table, seqused_k, indices};
  }
};
inline void moba_select(const MobaSelect& args, const Context& context = {}) {
  detail::run(tessera_moba_select, args.c(), context);
}
inline size_t moba_select_workspace_size(const MobaSelect& args, const Context& context = {}) {
  return detail::workspace_size(tessera_moba_select_workspace_size, args.c(), context);
}

struct MassSelect {
  Tensor q = {};
  Tensor k = {};
  int64_t topk = 0;
  int64_t block_size = 64;
  int64_t block_q = 64;
  int64_t stride = 8;
  int64_t local_blocks = 1;
  int64_t init_blocks = 1;
  std::optional<float> softmax_scale = {};
  Tensor q_offset = {};
  Tensor page_table = {};
  Tensor seqused_k = {};
  Tensor indices = {};

  // Points into this object.
  tessera_mass_select_args c() const {
    const float* scale = softmax_scale ? &*softmax_scale : nullptr;
    return {q,           k,     topk,     block_size, block_q,   stride, local_blocks,
            init_blocks, scale, q_offset, page_table, seqused_k, indices};
  }
};
inline void mass_select(const MassSelect& args, const Context& context = {}) {
  detail::run(tessera_mass_select, args.c(), context);
}
inline size_t mass_select_workspace_size(const MassSelect& args, const Context& context = {}) {
  return detail::workspace_size(tessera_mass_select_workspace_size, args.c(), context);
}

// ---- MSA selection: block scores of a trained indexer ---------------------------------------------------------------

// Index queries and keys, in the arguments of the two operators below.
struct MsaIndex {
  Tensor q = {};
  Tensor k = {};
  Sequences sequences = {};
  int64_t block_size = 128;
  bool reduce_heads = false;

  tessera_msa_index c() const { return {q, k, sequences.c(), block_size, reduce_heads ? 1 : 0}; }
};

struct MsaBlockScores {
  MsaIndex index = {};
  Tensor scores = {};

  tessera_msa_block_scores_args c() const { return {index.c(), scores}; }
};
inline void msa_block_scores(const MsaBlockScores& args, const Context& context = {}) {
  detail::run(tessera_msa_block_scores, args.c(), context);
}
inline size_t msa_block_scores_workspace_size(const MsaBlockScores& args, const Context& context = {}) {
  return detail::workspace_size(tessera_msa_block_scores_workspace_size, args.c(), context);
}

struct MsaSelect {
  MsaIndex index = {};
  int64_t topk = 16;
  int64_t local_blocks = 1;
  int64_t init_blocks = 0;
  Tensor indices = {};

  tessera_msa_select_args c() const { return {index.c(), topk, local_blocks, init_blocks, indices}; }
};
inline void msa_select(const MsaSelect& args, const Context& context = {}) {
  detail::run(tessera_msa_select, args.c(), context);
}
inline size_t msa_select_workspace_size(const MsaSelect& args, const Context& context = {}) {
  return detail::workspace_size(tessera_msa_select_workspace_size, args.c(), context);
}

// ---- QSA: compressed keys and token lists ---------------------------------------------------------------------------

// How raw keys become the key of their block, in the arguments of the two operators below.
struct QsaKeyRule {
  Tensor norm_weight = {};
  int64_t block_size = 4;
  double eps = 1e-6;
  int64_t rotary_dim = 64;
  double rope_theta = 1e7;
  bool round_intermediates = false;

  // Points into this object.
  tessera_qsa_key_rule c() const {
    return {norm_weight, block_size, &eps, rotary_dim, &rope_theta, round_intermediates ? 1 : 0};
  }
};

struct QsaCompressKeys {
  Tensor raw_keys = {};
  QsaKeyRule rule = {};
  Tensor positions = {};
  Tensor cos = {};
  Tensor sin = {};
  Tensor out = {};

  // Points into this object.
  tessera_qsa_compress_keys_args c() const { return {raw_keys, rule.c(), positions, cos, sin, out}; }
};
inline void qsa_compress_keys(const QsaCompressKeys& args, const Context& context = {}) {
  detail::run(tessera_qsa_compress_keys, args.c(), context);
}

struct QsaAppendKeys {
  Tensor raw_keys = {};
  Tensor cu_seqlens_q = {};
  Tensor seq_lens = {};
  QsaKeyRule rule = {};
  Tensor block_positions = {};
  Tensor cos = {};
  Tensor sin = {};
  Tensor ring = {};
  Tensor ring_slots = {};
  Tensor cache = {};
  Tensor page_table = {};

  // Points into this object.
  tessera_qsa_append_keys_args c() const {
    return {raw_keys, cu_seqlens_q, seq_lens, rule.c(), block_positions, cos, sin, ring, ring_slots, cache, page_table};
  }
};
inline void qsa_append_keys(const QsaAppendKeys& args, const Context& context = {}) {
  detail::run(tessera_qsa_append_keys, args.c(), context);
}

struct QsaScreenKeys {
  Tensor keys = {};
  Tensor codes = {};
  Tensor scales = {};
};
inline void qsa_screen_keys(const QsaScreenKeys& a, const Context& context = {}) {
  detail::run(tessera_qsa_screen_keys, {a.keys, a.codes, a.scales}, context);
}

struct QsaExpandBlocks {
  Tensor block_ids = {};
  Tensor query_positions = {};
  int64_t block_size = 4;
  Tensor token_indices = {};
};
inline void qsa_expand_blocks(const QsaExpandBlocks& a, const Context& context = {}) {
  detail::run(tessera_qsa_expand_blocks, {a.block_ids, a.query_positions, a.block_size, a.token_indices}, context);
}

// ---- QSA: block scores and selection --------------------------------------------------------------------------------

// Index queries and compressed keys, in the arguments of two operators below.
struct QsaIndex {
  Tensor q = {};
  Tensor k = {};
  Tensor weights = {};
  std::optional<float> scale = {};
  int64_t block_size = 4;
  Tensor cu_seqlens_q = {};
  Tensor token_to_req = {};
  Tensor query_positions = {};
  Tensor seq_lens_q = {};
  Tensor seq_lens_k = {};
  Tensor page_table = {};

  // Points into this object.
  tessera_qsa_index c() const {
    const float* given = scale ? &*scale : nullptr;
    return {q,          k,          weights,   given, block_size, cu_seqlens_q, token_to_req, query_positions,
            seq_lens_q, seq_lens_k, page_table};
  }
};

struct QsaIndexerMqaScore {
  QsaIndex index = {};
  Tensor scores = {};

  // Points into this object.
  tessera_qsa_indexer_mqa_score_args c() const { return {index.c(), scores}; }
};
inline void qsa_indexer_mqa_score(const QsaIndexerMqaScore& args, const Context& context = {}) {
  detail::run(tessera_qsa_indexer_mqa_score, args.c(), context);
}
inline size_t qsa_indexer_mqa_score_workspace_size(const QsaIndexerMqaScore& args, const Context& context = {}) {
  return detail::workspace_size(tessera_qsa_indexer_mqa_score_workspace_size, args.c(), context);
}

struct QsaMqaPrefill {
  Tensor q = {};
  Tensor k = {};
  Tensor row_starts = {};
  Tensor row_ends = {};
  Tensor weights = {};
  std::optional<float> scale = {};
  Tensor scores = {};

  // Points into this object.
  tessera_qsa_mqa_prefill_args c() const {
    return {q, k, row_starts, row_ends, weights, scale ? &*scale : nullptr, scores};
  }
};
inline void qsa_mqa_prefill(const QsaMqaPrefill& args, const Context& context = {}) {
  detail::run(tessera_qsa_mqa_prefill, args.c(), context);
}
inline size_t qsa_mqa_prefill_workspace_size(const QsaMqaPrefill& args, const Context& context = {}) {
  return detail::workspace_size(tessera_qsa_mqa_prefill_workspace_size, args.c(), context);
}

struct QsaMqaDecode {
  Tensor q = {};
  Tensor k_cache = {};
  Tensor page_table = {};
  Tensor context_lens = {};
  Tensor weights = {};
  std::optional<float> scale = {};
  Tensor scores = {};

  // Points into this object.
  tessera_qsa_mqa_decode_args c() const {
    return {q, k_cache, page_table, context_lens, weights, scale ? &*scale : nullptr, scores};
  }
};
inline void qsa_mqa_decode(const QsaMqaDecode& args, const Context& context = {}) {
  detail::run(tessera_qsa_mqa_decode, args.c(), context);
}
inline size_t qsa_mqa_decode_workspace_size(const QsaMqaDecode& args, const Context& context = {}) {
  return detail::workspace_size(tessera_qsa_mqa_decode_workspace_size, args.c(), context);
}

struct QsaSelect {
  QsaIndex index = {};
  int64_t topk = 512;
  Tensor indices = {};
  Tensor token_indices = {};
  Tensor screen_codes = {};
  Tensor screen_scales = {};

  // Points into this object.
  tessera_qsa_select_args c() const { return {index.c(), topk, indices, token_indices, screen_codes, screen_scales}; }
};
inline void qsa_select(const QsaSelect& args, const Context& context = {}) {
  detail::run(tessera_qsa_select, args.c(), context);
}
inline size_t qsa_select_workspace_size(const QsaSelect& args, const Context& context = {}) {
  return detail::workspace_size(tessera_qsa_select_workspace_size, args.c(), context);
}

struct TopkBlocks {
  Tensor scores = {};
  Tensor indices = {};
};
inline void topk_blocks(const TopkBlocks& a, const Context& context = {}) {
  detail::run(tessera_topk_blocks, {a.scores, a.indices}, context);
}
inline size_t topk_blocks_workspace_size(const TopkBlocks& a, const Context& context = {}) {
  return detail::workspace_size(tessera_topk_blocks_workspace_size, {a.scores, a.indices}, context);
}

// ---- QSA: attention over token lists --------------------------------------------------------------------------------

struct QsaSparseAttention {
  Tensor q = {};
  Tensor k = {};
  Tensor v = {};
  Tensor token_indices = {};
  Tensor selected_kv_indices = {};
  Tensor cu_seqlens_q = {};
  Tensor token_to_req = {};
  Tensor query_positions = {};
  Tensor seq_lens_q = {};
  Tensor cu_seqlens_k = {};
  Tensor seq_lens_k = {};
  Tensor page_table = {};
  int64_t page_size = 0;  // of k
  std::optional<float> softmax_scale = {};
  int64_t num_splits = 0;  // by the length of the list
  Tensor gate = {};
  Tensor out = {};
  Tensor lse = {};

  // Points into this object.
  tessera_qsa_sparse_attention_args c() const {
    const float* scale = softmax_scale ? &*softmax_scale : nullptr;
    return {q,
            k,
            v,
            token_indices,
            selected_kv_indices,
            cu_seqlens_q,
            token_to_req,
            query_positions,
            seq_lens_q,
            cu_seqlens_k,
            seq_lens_k,
            page_table,
            page_size,
            scale,
            num_splits,
            gate,
            out,
            lse};
  }
};
inline void qsa_sparse_attention(const QsaSparseAttention& args, const Context& context = {}) {
  detail::run(tessera_qsa_sparse_attention, args.c(), context);
}
inline size_t qsa_sparse_attention_workspace_size(const QsaSparseAttention& args, const Context& context = {}) {
  return detail::workspace_size(tessera_qsa_sparse_attention_workspace_size, args.c(), context);
}
inline std::string qsa_sparse_attention_explain(const QsaSparseAttention& args, const Context& context = {}) {
  return detail::explain(tessera_qsa_sparse_attention_explain, args.c(), context);
}

}  // namespace tessera

#endif  // TESSERA_TESSERA_HPP_
