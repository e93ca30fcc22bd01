// tessera.h: the C ABI of tessera, attention over the blocks that matter. For C99 and for any C++ from C++11 on.
//
// An operator is a struct of arguments and up to three functions:
//   tessera_<op>                 runs it
//   tessera_<op>_workspace_size  tells the bytes of scratch memory that a run with these arguments and context uses
//   tessera_<op>_explain         writes which kernel and plan it gets, and why
// All of them take const tessera_<op>_args* and const tessera_context*, which may be NULL. Zero-initialise the arguments
// and set by name what is given: a tensor that is left out is absent, a number has the default said here.
//
// * Memory is the caller's. Tensors are views: inputs are only read, outputs are fully written (of a cache, the slots
//   that are named). A call keeps no reference to its arguments.
// * A call never throws, never aborts and prints nothing. It returns a tessera_status.
// * Bad structure (rank, shape, dtype, stride, overlap) is an error before anything is written, and
//   tessera_last_error() names the operator and the argument. Bad values inside index tensors are masked.
// * The same inputs give the same bits on every run and for every executor and number of threads.
// * Any function may be called by several threads at once. Calls that run at once share no output, cache or workspace.
// * Sizes and strides count elements, workspaces bytes; positions and ids begin at 0; lse is a natural logarithm.
//
// Letters: B requests, Sq/Sk query/key tokens, Hq/Hkv query/KV heads, G = Hq/Hkv, D/Dv head dims,
// bs tokens per KV block, N = ceil(Sk/bs) blocks, W entries of an index row, K selected blocks,
// nQ = ceil(Sq/block_q) query blocks. docs/notation.md has them all.
//
// Sections: version; status; tensors; context (threads, memory, variant); sequences (packed and paged); the KV cache;
// block-sparse attention, with that of MiniMax-M3; merging; training-free selection; MSA, the indexer of MiniMax-M3; QSA,
// the index keys, selection and attention of Qwen4-Exp; measuring.
#ifndef TESSERA_TESSERA_H_
#define TESSERA_TESSERA_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define TESSERA_API __declspec(dllexport)
#else
#define TESSERA_API __attribute__((visibility("default")))
#endif

// C lets an enum hold any int. So does C++ with this, which makes it safe to look at what a C caller put there.
#ifdef __cplusplus
#define TESSERA_ANY_INT : int32_t
#else
#define TESSERA_ANY_INT
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---- Version ------------------------------------------------------------------------------------

// Within one ABI version, which is the SONAME's number, functions may be added, but none goes away, and no struct and
// no value of an enum changes.
#define TESSERA_VERSION_MAJOR 0
#define TESSERA_VERSION_MINOR 1
#define TESSERA_VERSION_PATCH 0
#define TESSERA_ABI_VERSION 1

// Of the library, which may be newer than the header: "0.1.0"; and what must equal TESSERA_ABI_VERSION.
TESSERA_API const char* tessera_version(void);
TESSERA_API int tessera_abi_version(void);

// ---- Status -------------------------------------------------------------------------------------

typedef enum tessera_status TESSERA_ANY_INT {
  TESSERA_OK = 0,
  TESSERA_INVALID_ARGUMENT = 1,  // shape, layout, scale, option      (Python: ValueError)
  TESSERA_TYPE_ERROR = 2,        // dtype                             (Python: TypeError)
  TESSERA_NOT_IMPLEMENTED = 3,   // valid, but not supported          (Python: NotImplementedError)
  TESSERA_OUT_OF_MEMORY = 4,     //                                   (Python: MemoryError)
  TESSERA_INTERNAL = 5           //                                   (Python: RuntimeError)
} tessera_status;

// The message of this thread's last failed call; valid until this thread's next call.
TESSERA_API const char* tessera_last_error(void);

// ---- Tensors ------------------------------------------------------------------------------------

typedef enum tessera_dtype TESSERA_ANY_INT {
  TESSERA_BF16 = 1,
  TESSERA_F16 = 2,
  TESSERA_F32 = 3,
  TESSERA_I32 = 4,
  TESSERA_I8 = 5,
  TESSERA_OTHER_DTYPE = 99  // what a binding passes for a dtype that no operator takes
} tessera_dtype;

#define TESSERA_MAX_DIMS 5

// A strided view. Zero-initialised (ndim 0) means "not given". Strides count elements, not bytes, and may be 0 on
// inputs that are broadcast; the feature axis of q, k, v, out and state_o has stride 1.
typedef struct tessera_tensor {
  void* data;  // of the first element, at a multiple of the element's size
  tessera_dtype dtype;
  int32_t ndim;                      // axes
  int64_t shape[TESSERA_MAX_DIMS];   // slowest axis first
  int64_t stride[TESSERA_MAX_DIMS];  // from one element of the axis to the next
} tessera_tensor;

// The view of an array that is dense and row-major: tessera_dense(q, TESSERA_F32, 3, (int64_t[]){rows, heads, dim}).
// Inputs are only read, whatever the constness of the pointer.
static inline tessera_tensor tessera_dense(const void* data, tessera_dtype dtype, int32_t ndim, const int64_t* shape) {
  tessera_tensor t;
  int64_t stride = 1;
  int32_t axis;
#ifdef __cplusplus
  t.data = const_cast<void*>(data);
#else
  t.data = (void*)(uintptr_t)data;
#endif
  t.dtype = dtype;
  t.ndim = ndim;  // more axes than there may be are for the operator to refuse
  for (axis = TESSERA_MAX_DIMS - 1; axis >= 0; --axis) {
    t.shape[axis] = axis < ndim ? shape[axis] : 0;
    t.stride[axis] = axis < ndim ? stride : 0;
    if (axis < ndim) stride *= shape[axis];
  }
  return t;
}

// ---- Context: where and how a call runs -----------------------------------------------------------

typedef enum tessera_executor_kind TESSERA_ANY_INT {
  TESSERA_EXECUTOR_POOL = 0,          // the library's pool: affinity mask and cgroup quota decide its size
  TESSERA_EXECUTOR_THREADS = 1,       // the library's pool, at most num_threads of it
  TESSERA_EXECUTOR_PARALLEL_FOR = 2,  // the host's threads through a callback
  TESSERA_EXECUTOR_PART = 3           // the host's threads call in: this call does part `part` of `num_parts`
} tessera_executor_kind;

// In parts: all parts get the same arguments, in any order or at once, and outputs are whole when the last has returned.
// No part waits for another, so a call is cut along its rows and heads alone, not along the keys.

// Runs body(arg, i) for every i in [0, n), concurrently or not, and returns when all are done.
typedef void (*tessera_parallel_for)(void* host, int32_t n, void (*body)(void* arg, int32_t i), void* arg);

typedef struct tessera_executor {
  tessera_executor_kind kind;
  int32_t num_threads;                // THREADS, PARALLEL_FOR: at least 1
  int32_t part;                       // PART: 0 to num_parts - 1
  int32_t num_parts;                  // PART: at least 1
  tessera_parallel_for parallel_for;  // PARALLEL_FOR
  void* host;                         // PARALLEL_FOR: passed back to the callback
} tessera_executor;

typedef enum tessera_backend TESSERA_ANY_INT {
  TESSERA_BACKEND_NATIVE = 0,
  // Plain double precision, one thread, shares no code with the kernels. Of a call in parts, part 0 does it all.
  TESSERA_BACKEND_REFERENCE = 1
} tessera_backend;

// Zero-initialised (or NULL) is a good default everywhere.
//
// tessera_<op>_workspace_size checks the arguments like the call itself and reads lengths, but no data: it depends on
// the lengths, the executor and the variant. In parts it is what each part needs for its own, the same for all of them,
// and no more when requests have fewer keys, so that memory for the longest serves for all. A workspace needs no contents
// and keeps none. Without one the library takes what it needs on first use and keeps it: later calls of the same size
// allocate nothing.
typedef struct tessera_context {
  tessera_executor executor;
  tessera_backend backend;
  const char* variant;     // NULL: the best one; else a name of tessera_variant_name()
  void* workspace;         // NULL: the library's own; else the caller's, at a multiple of 64 bytes
  size_t workspace_bytes;  // of workspace: at least tessera_<op>_workspace_size
} tessera_context;

// Size of the library's pool. 0 restores the default (TESSERA_NUM_THREADS, else the affinity mask and cgroup quota).
TESSERA_API tessera_status tessera_set_num_threads(int32_t n);
TESSERA_API int32_t tessera_get_num_threads(void);

// Kernel variants, best first. `available`: compiled in, supported by this CPU and OS, and allowed by TESSERA_MAX_ISA.
TESSERA_API int32_t tessera_num_variants(void);
TESSERA_API const char* tessera_variant_name(int32_t i);
TESSERA_API int32_t tessera_variant_available(int32_t i);

// ---- Sequences: rows and keys of several requests in one call --------------------------------------------------------

// Packed rows are those of all requests one after the other. Keys come as a batch [B, Sk, Hkv, D], packed
// [total_k, Hkv, D] with cu_seqlens_k, or paged [P, Hkv, ps, D] with page_table and seqused_k, any page size: key j of
// request b is slot j % ps of page page_table[b][j / ps]. Lengths beyond what the tensors hold are cut to that, negative
// ones are 0; keys behind a page outside [0, P) do not exist. A request whose cu_seqlens decrease or leave the
// tensor, or whose rows start before an earlier request's end, is empty; rows that belong to no request give 0 (lse -inf).
typedef struct tessera_sequences {
  tessera_tensor cu_seqlens_q;  // int32 [B + 1]: request b has rows [cu[b], cu[b + 1])
  int64_t seqlen_q;             // without cu_seqlens_q: every request has this many rows
  tessera_tensor cu_seqlens_k;  // int32 [B + 1]
  tessera_tensor page_table;    // int32 [B, max_pages]
  tessera_tensor seqused_k;     // int32 [B]
  tessera_tensor q_offset;      // optional int32 [B]: position of each request's first row; absent: its keys - its rows
} tessera_sequences;

// ---- The KV cache -----------------------------------------------------------------------------------------------------

// Copies row i of k and v to slot slots[i] % ps of page slots[i] / ps, in every head. A slot outside [0, P * ps) is
// skipped (-1 by custom); of rows that name one slot the last stays; nothing but the named slots is written.
//
// Row-major pages are k_cache [P, Hkv, ps, D] and v_cache [P, Hkv, ps, Dv]. In the packed layout a page lies as kernels
// multiply it: the slots of k side by side, those of v in pairs. With e elements to 4 bytes, 2 of bf16 or f16, 1 of f32:
//   k_cache [P, Hkv, ceil(D/e), ps, e]   feature d of the key in slot j is [page][head][d / e][j][d % e]
//   v_cache [P, Hkv, ceil(ps/e), Dv, e]  feature d of the value in slot j is [page][head][j / e][d][j % e]
// The last two axes are dense. The element that an odd D leaves over in a slot becomes 0. Attention takes both layouts,
// with the same page_table, and gives the same bits; so do tessera_msa_block_scores and tessera_msa_select for index keys,
// which are written without values: v and v_cache are then both absent.
typedef struct tessera_append_kv_args {
  tessera_tensor k;        // [n, Hkv, D] bf16, f16 or f32
  tessera_tensor v;        // [n, Hkv, Dv], k's dtype; optional
  tessera_tensor slots;    // int32 [n]
  tessera_tensor k_cache;  // one of the two forms, k's dtype; may not overlap another argument
  tessera_tensor v_cache;  // the same form; goes with v
} tessera_append_kv_args;
TESSERA_API tessera_status tessera_append_kv(const tessera_append_kv_args* args, const tessera_context* context);

// ---- Block-sparse attention -------------------------------------------------------------------------

typedef enum tessera_mask TESSERA_ANY_INT {
  TESSERA_MASK_CAUSAL = 0,  // a query sees keys at positions <= its own
  TESSERA_MASK_NONE = 1
} tessera_mask;

// softmax(scale * q k^T) v over the keys of the listed blocks. A list is a set: any order, ids outside [0, N) are
// skipped, a repeated id counts once. A row without a selected visible key gives out = 0, lse = -inf,
// state (0, 0, -inf). lse is the natural logarithm of the sum of exp(scaled scores). k and v have q's dtype, or q is f32 and
// they are both bf16 or both f16: results are then as exact as theirs, and out is f32. Here and in the operators below.
typedef struct tessera_block_sparse_gqa_prefill_args {
  tessera_tensor q;           // [B, Sq, Hq, D] bf16, f16 or f32
  tessera_tensor k;           // [B, Sk, Hkv, D]; paged: [P, Hkv, ps, D], or as tessera_append_kv packs
  tessera_tensor v;           // [B, Sk, Hkv, Dv]; paged: [P, Hkv, ps, Dv]
  tessera_tensor kv_indices;  // int32 [B, nQ, W] for all heads, or [B, Hkv, nQ, W] per KV head
  int64_t block_size;         // tokens per KV block; 0: 128
  int64_t block_q;            // query tokens per list; 0: block_size
  tessera_mask mask;
  const float* softmax_scale;  // NULL: 1/sqrt(D)
  tessera_tensor q_offset;     // optional int32 [B]: position of query 0 of each request; absent: Sk - Sq
  tessera_tensor page_table;   // paged keys: int32 [B, max_pages], see tessera_sequences
  tessera_tensor seqused_k;    // paged keys: int32 [B]
  tessera_tensor out;          // [B, Sq, Hq, Dv], q's dtype              (tessera_block_sparse_gqa_prefill)
  tessera_tensor lse;          // optional f32 [B, Sq, Hq]                (tessera_block_sparse_gqa_prefill)
  tessera_tensor state_o;      // f32 [B, Sq, Hq, Dv], un-normalised      (tessera_block_sparse_gqa_prefill_state)
  tessera_tensor state_l;      // f32 [B, Sq, Hq], sum of exp(s - m)      (tessera_block_sparse_gqa_prefill_state)
  tessera_tensor state_m;      // f32 [B, Sq, Hq], max of scaled scores   (tessera_block_sparse_gqa_prefill_state)
} tessera_block_sparse_gqa_prefill_args;

TESSERA_API tessera_status tessera_block_sparse_gqa_prefill(const tessera_block_sparse_gqa_prefill_args* args,
                                                            const tessera_context* context);
TESSERA_API tessera_status tessera_block_sparse_gqa_prefill_state(const tessera_block_sparse_gqa_prefill_args* args,
                                                                  const tessera_context* context);
// Bytes of workspace that one call with these arguments and this executor uses.
TESSERA_API tessera_status tessera_block_sparse_gqa_prefill_workspace_size(
    const tessera_block_sparse_gqa_prefill_args* args, const tessera_context* context, size_t* bytes);
// One line per fact: the variant chosen and why each better one was not, rows per tile, packing, splits, workspace.
// Writes at most `capacity` bytes with the final NUL.
TESSERA_API tessera_status tessera_block_sparse_gqa_prefill_explain(const tessera_block_sparse_gqa_prefill_args* args,
                                                                    const tessera_context* context, char* text,
                                                                    size_t capacity);

// The same with one list per token and KV head, for packed rows: MiniMax-M3's prefill, decode, or a mix of both.
typedef struct tessera_msa_sparse_attention_args {
  tessera_tensor q;             // [total_q, Hq, D] bf16, f16 or f32
  tessera_tensor k;             // [total_k, Hkv, D] or paged [P, Hkv, ps, D], or as tessera_append_kv packs
  tessera_tensor v;             // packed [total_k, Hkv, Dv] or paged [P, Hkv, ps, Dv]
  tessera_tensor q2k_indices;   // int32 [Hkv, total_q, W]: block ids within the row's request
  tessera_sequences sequences;  // cu_seqlens_q or seqlen_q; cu_seqlens_k, or page_table and seqused_k
  int64_t block_size;           // tokens per KV block; 0: 128
  tessera_mask mask;
  const float* softmax_scale;  // NULL: 1/sqrt(D)
  tessera_tensor out;          // [total_q, Hq, Dv], q's dtype
  tessera_tensor lse;          // optional f32 [total_q, Hq]
} tessera_msa_sparse_attention_args;

TESSERA_API tessera_status tessera_msa_sparse_attention(const tessera_msa_sparse_attention_args* args,
                                                        const tessera_context* context);
TESSERA_API tessera_status tessera_msa_sparse_attention_workspace_size(const tessera_msa_sparse_attention_args* args,
                                                                       const tessera_context* context, size_t* bytes);
TESSERA_API tessera_status tessera_msa_sparse_attention_explain(const tessera_msa_sparse_attention_args* args,
                                                                const tessera_context* context, char* text,
                                                                size_t capacity);

// One query block, one KV head per query head.
typedef struct tessera_block_sparse_attention_single_q_args {
  tessera_tensor q;           // [H, bq, D] bf16, f16 or f32
  tessera_tensor k;           // [H, Sk, D]
  tessera_tensor v;           // [H, Sk, Dv]
  tessera_tensor kv_indices;  // int32 [W], one list for all heads, or [H, W]
  int64_t block_size;         // tokens per KV block; 0: 128
  tessera_mask mask;
  const float* softmax_scale;  // NULL: 1/sqrt(D)
  tessera_tensor q_offset;     // optional int32 [1]: position of query 0; absent: Sk - bq
  tessera_tensor out;          // [H, bq, Dv], q's dtype
  tessera_tensor lse;          // optional f32 [H, bq]
} tessera_block_sparse_attention_single_q_args;

TESSERA_API tessera_status tessera_block_sparse_attention_single_q(
    const tessera_block_sparse_attention_single_q_args* args, const tessera_context* context);
TESSERA_API tessera_status tessera_block_sparse_attention_single_q_workspace_size(
    const tessera_block_sparse_attention_single_q_args* args, const tessera_context* context, size_t* bytes);
TESSERA_API tessera_status
tessera_block_sparse_attention_single_q_explain(const tessera_block_sparse_attention_single_q_args* args,
                                                const tessera_context* context, char* text, size_t capacity);

// ---- Merging states of disjoint KV shards -------------------------------------------------------------

// out = sum_i o_i exp(m_i - M) / sum_i l_i exp(m_i - M), M = max m_i, in the order given. A shard with m = -inf or l = 0
// weighs nothing, whatever its o. All empty: out = 0.
typedef struct tessera_cp_merge_args {
  const tessera_tensor* o;  // num_states of f32 [..., Dv], rank 1 to 5
  const tessera_tensor* l;  // num_states of f32 [...]
  const tessera_tensor* m;  // num_states of f32 [...]
  int64_t num_states;       // at least 1
  tessera_tensor out;       // [..., Dv] bf16, f16 or f32
} tessera_cp_merge_args;
TESSERA_API tessera_status tessera_cp_merge(const tessera_cp_merge_args* args, const tessera_context* context);

// The same from normalised partials. A partial with lse = -inf weighs nothing, even if its data are NaN.
typedef struct tessera_merge_states_args {
  const tessera_tensor* partial_out;  // num_states of [..., Dv] in one dtype
  const tessera_tensor* partial_lse;  // num_states of f32 [...]
  int64_t num_states;                 // at least 1
  tessera_tensor out;                 // [..., Dv], the partials' dtype
  tessera_tensor lse;                 // f32 [...]
} tessera_merge_states_args;
TESSERA_API tessera_status tessera_merge_states(const tessera_merge_states_args* args, const tessera_context* context);

// ---- Training-free selection ----------------------------------------------------------------------------

// Both write int32 [B, Hkv, nQ, K]: ascending block ids, left-packed, then -1. A query block's own blocks and the first
// init_blocks are in whatever their score; preference is higher score, then lower id; NaN ranks last. If no more than K
// blocks are visible, all of them are listed.

// moba: a block's score is the mean over the query block's rows and the group's heads of q . mean(keys of the block).
typedef struct tessera_moba_select_args {
  tessera_tensor q;           // [B, Sq, Hq, D] bf16, f16 or f32
  tessera_tensor k;           // [B, Sk, Hkv, D], q's dtype; paged: [P, Hkv, ps, D]
  int64_t topk;               // blocks per list, at least 1
  int64_t block_size;         // tokens per block; 0: 128
  int64_t block_q;            // query tokens per list; 0: 1
  int64_t local_blocks;       // blocks up to and including the query's own that are always in
  int64_t init_blocks;        // first blocks that are always in
  tessera_tensor q_offset;    // optional int32 [B]; absent: Sk - Sq
  tessera_tensor page_table;  // paged keys: int32 [B, max_pages], see tessera_sequences
  tessera_tensor seqused_k;   // paged keys: int32 [B]
  tessera_tensor indices;     // int32 [B, Hkv, nQ, topk]
} tessera_moba_select_args;
TESSERA_API tessera_status tessera_moba_select(const tessera_moba_select_args* args, const tessera_context* context);
TESSERA_API tessera_status tessera_moba_select_workspace_size(const tessera_moba_select_args* args,
                                                              const tessera_context* context, size_t* bytes);

// mass: rows 0, stride, 2 stride, ... and the last of a query block, in all heads of the group, take an exact softmax over
// their visible keys; a block's score is the sum of its probabilities.
typedef struct tessera_mass_select_args {
  tessera_tensor q;      // [B, Sq, Hq, D] bf16, f16 or f32
  tessera_tensor k;      // [B, Sk, Hkv, D], q's dtype; paged: [P, Hkv, ps, D]
  int64_t topk;          // blocks per list, at least 1
  int64_t block_size;    // tokens per block; 0: 64
  int64_t block_q;       // query tokens per list; 0: 64
  int64_t stride;        // rows of a query block from one sample to the next; 0: 8
  int64_t local_blocks;  // as for moba
  int64_t init_blocks;
  const float* softmax_scale;  // NULL: 1/sqrt(D)
  tessera_tensor q_offset;     // optional int32 [B]; absent: Sk - Sq
  tessera_tensor page_table;   // paged keys: int32 [B, max_pages], see tessera_sequences
  tessera_tensor seqused_k;    // paged keys: int32 [B]
  tessera_tensor indices;      // int32 [B, Hkv, nQ, topk]
} tessera_mass_select_args;
TESSERA_API tessera_status tessera_mass_select(const tessera_mass_select_args* args, const tessera_context* context);
TESSERA_API tessera_status tessera_mass_select_workspace_size(const tessera_mass_select_args* args,
                                                              const tessera_context* context, size_t* bytes);

// ---- MSA selection: block scores of a trained indexer ------------------------------------------------------------------

// Index queries and keys. Index key heads: 1, shared by all index heads, or one per index head.
typedef struct tessera_msa_index {
  tessera_tensor q;             // [B, Sq, Hi, D], or packed [total_q, Hi, D]; bf16, f16 or f32
  tessera_tensor k;             // [B, Sk, 1|Hi, D], packed [total_k, 1|Hi, D] or paged [P, 1|Hi, ps, D]; q's dtype
  tessera_sequences sequences;  // packed q: cu_seqlens_q or seqlen_q; by the form of k as everywhere; q_offset
  int64_t block_size;           // tokens per block; 0: 128
  int32_t reduce_heads;         // not 0: the maximum over the index heads, one result for all (Hi of the outputs is 1)
} tessera_msa_index;

// score[h, t, b] = max over keys j of block b with j <= position(t) of q[t, h] . k[j], unscaled; none: -inf.
typedef struct tessera_msa_block_scores_args {
  tessera_msa_index index;
  tessera_tensor scores;  // f32 [B, Hi, Sq, N] or [Hi, total_q, N]; blocks past a request's keys are -inf
} tessera_msa_block_scores_args;
TESSERA_API tessera_status tessera_msa_block_scores(const tessera_msa_block_scores_args* args,
                                                    const tessera_context* context);
TESSERA_API tessera_status tessera_msa_block_scores_workspace_size(const tessera_msa_block_scores_args* args,
                                                                   const tessera_context* context, size_t* bytes);

// The topk blocks of each row by that score, of which only tiles are stored: the local_blocks up to and including the
// row's own and the first init_blocks are in whatever their score, then higher score, then lower id; NaN ranks last. Ids
// ascend, left-packed, then -1; rows with no more than topk visible blocks list them all.
typedef struct tessera_msa_select_args {
  tessera_msa_index index;
  int64_t topk;            // at least 1; MiniMax-M3: 16
  int64_t local_blocks;    // MiniMax-M3: 1
  int64_t init_blocks;     // MiniMax-M3: 0
  tessera_tensor indices;  // int32 [B, Hi, Sq, topk] or [Hi, total_q, topk]
} tessera_msa_select_args;
TESSERA_API tessera_status tessera_msa_select(const tessera_msa_select_args* args, const tessera_context* context);
TESSERA_API tessera_status tessera_msa_select_workspace_size(const tessera_msa_select_args* args,
                                                             const tessera_context* context, size_t* bytes);

// ---- QSA: compressed keys and token lists ----------------------------------------------------------------------------------

// How the raw index keys of block_size tokens become the one key of their block: their mean, rounded to the keys' dtype;
// RMSNorm, x * rsqrt(mean(x^2) + eps) * (1 + norm_weight); RoPE of the first rotary_dim features, i with i + rotary_dim / 2,
// at the position of the block's first token. All of it in f32, and rounded once more at the end.
typedef struct tessera_qsa_key_rule {
  tessera_tensor norm_weight;   // [D], the keys' dtype or f32; D is at most 4096
  int64_t block_size;           // 0: 4
  const double* eps;            // NULL: 1e-6
  int64_t rotary_dim;           // even, at most D; 0: no RoPE
  const double* rope_theta;     // NULL: 1e7; pair i turns by position * rope_theta^(-2 i / rotary_dim)
  int32_t round_intermediates;  // not 0: round the norm, cos, sin, and products and sums of RoPE to the dtype as well
} tessera_qsa_key_rule;

// All whole blocks of a prompt; tokens after the last one are not read. Blocks follow the order of tokens, whatever their
// positions.
typedef struct tessera_qsa_compress_keys_args {
  tessera_tensor raw_keys;  // [B, S, D] bf16, f16 or f32
  tessera_qsa_key_rule rule;
  tessera_tensor positions;  // optional int32 [B, S]; absent: 0, 1, ...
  tessera_tensor cos;        // optional f32 [B, S / block_size, rotary_dim / 2], with sin: of each block, in place of
  tessera_tensor sin;        // positions and rope_theta
  tessera_tensor out;        // [B, S / block_size, D], raw_keys' dtype
} tessera_qsa_compress_keys_args;
TESSERA_API tessera_status tessera_qsa_compress_keys(const tessera_qsa_compress_keys_args* args,
                                                     const tessera_context* context);

// The same as tokens arrive, bit for bit: row i of a request is its token seq_lens[b] + i. Each block that these tokens
// complete goes to the cache, block g to slot g % ps of page page_table[b][g / ps], without pages to cache[b][g]. What the
// cache has no place for (behind an invalid page, past its end) is skipped, and nothing else is written. Token t is kept
// in row t % capacity of the request's slot of the ring, too, where later calls find it to complete its block. A call may
// begin before the end of what was written, which so takes back all tokens from there on: up to r tokens before it if
// capacity >= block_size - 1 + r (r drafts behind a token that is always accepted). Requests may not share the places of
// ring and cache that they write. A negative length is 0; without a valid slot of the ring a block that began before the
// call is skipped.
typedef struct tessera_qsa_append_keys_args {
  tessera_tensor raw_keys;      // [B, n, D], or packed [total, D]; bf16, f16 or f32
  tessera_tensor cu_seqlens_q;  // packed: int32 [B + 1], see tessera_sequences
  tessera_tensor seq_lens;      // int32 [B]: tokens of each request before this call
  tessera_qsa_key_rule rule;
  tessera_tensor block_positions;  // optional int32 [B, M]: of the blocks from seq_lens / block_size on
  tessera_tensor cos;              // optional f32 [B, M, rotary_dim / 2], with sin: of the same blocks, in place of
  tessera_tensor sin;              // block_positions and rope_theta; with either, blocks past M are skipped
  tessera_tensor ring;             // [slots, capacity, D], raw_keys' dtype; capacity >= block_size - 1
  tessera_tensor ring_slots;       // optional int32 [B]; absent: b
  tessera_tensor cache;            // [B, N, D]; with page_table [P, ps, D] or [P, ps, 1, D]; raw_keys' dtype
  tessera_tensor page_table;       // int32 [B, max_pages]
} tessera_qsa_append_keys_args;
TESSERA_API tessera_status tessera_qsa_append_keys(const tessera_qsa_append_keys_args* args,
                                                   const tessera_context* context);

// Copies of keys in 8 bits, for tessera_qsa_select: scale = max|k| / 127, code = round(k / scale). A key that has no
// such copy (NaN, infinity, a scale outside [2^-40, 2^40]) gets the scale NaN, and one of zeros the scale 0; both codes of
// zeros. Of a cache, the rows that are new; any view of them will do.
typedef struct tessera_qsa_screen_keys_args {
  tessera_tensor keys;    // [..., D], rank 1 to 5; bf16, f16 or f32
  tessera_tensor codes;   // int8 [..., D]
  tessera_tensor scales;  // f32 [...]
} tessera_qsa_screen_keys_args;
TESSERA_API tessera_status tessera_qsa_screen_keys(const tessera_qsa_screen_keys_args* args,
                                                   const tessera_context* context);

// The tokens up to the row's position of each selected block, in the order of the ids, then those of the incomplete block
// that the position lies in, unless an id has named it, then -1. Ids that are negative or begin after the position, and all
// of a row with a negative position, give nothing.
typedef struct tessera_qsa_expand_blocks_args {
  tessera_tensor block_ids;        // int32 [..., K], rank 1 to 5
  tessera_tensor query_positions;  // int32 [...]
  int64_t block_size;              // 0: 4
  tessera_tensor token_indices;    // int32 [..., K * block_size + block_size - 1]
} tessera_qsa_expand_blocks_args;
TESSERA_API tessera_status tessera_qsa_expand_blocks(const tessera_qsa_expand_blocks_args* args,
                                                     const tessera_context* context);

// ---- QSA: block scores and selection -----------------------------------------------------------------------------------

// Index queries against compressed keys, each of which stands for the block_size tokens of a block. There is one key head:
//   score[t, g] = scale * sum over heads h of weights[t, h] * max(0, q[t, h] . k[g])
// Row t of request b sees block g if g < (position + 1) / block_size, g < seq_lens_k[b] / block_size and the key exists: it
// lies before the end of k or of the request's row of the page table, and behind a page inside [0, P). A NaN survives the
// maximum. Rows of no request, and rows at or past seq_lens_q[b] within their request, see nothing.
typedef struct tessera_qsa_index {
  tessera_tensor q;        // [B, Q, Hi, D] or packed [total_q, Hi, D]; bf16, f16 or f32
  tessera_tensor k;        // [B, N, D], or with page_table [P, ps, D] or [P, ps, 1, D]; q's dtype
  tessera_tensor weights;  // optional f32 [B, Q, Hi] or [total_q, Hi]; absent: 1
  const float* scale;      // NULL: 1/sqrt(D)
  int64_t block_size;      // tokens per block; 0: 4
  // Packed rows of more than one request: where each begins, or each row's request, or both, and then a row outside its
  // request's bounds belongs to none. Broken bounds: see tessera_sequences.
  tessera_tensor cu_seqlens_q;     // int32 [B + 1]
  tessera_tensor token_to_req;     // int32 [total_q]; a row with a value outside [0, B) belongs to none
  tessera_tensor query_positions;  // optional int32 [B, Q] or [total_q]; absent: a row's index within its request
  tessera_tensor seq_lens_q;       // optional int32 [B]: rows that count
  tessera_tensor seq_lens_k;       // optional int32 [B]: tokens whose blocks may be seen
  tessera_tensor page_table;       // int32 [B, max_pages]: key g is row g % ps of page page_table[b][g / ps]
} tessera_qsa_index;

typedef struct tessera_qsa_indexer_mqa_score_args {
  tessera_qsa_index index;
  tessera_tensor scores;  // f32 [B, Q, N] or [total_q, N], any N; -inf where a row does not see the block
} tessera_qsa_indexer_mqa_score_args;
TESSERA_API tessera_status tessera_qsa_indexer_mqa_score(const tessera_qsa_indexer_mqa_score_args* args,
                                                         const tessera_context* context);
TESSERA_API tessera_status tessera_qsa_indexer_mqa_score_workspace_size(const tessera_qsa_indexer_mqa_score_args* args,
                                                                        const tessera_context* context, size_t* bytes);

// The same scores of packed rows over one set of keys, of which row t sees [row_starts[t], row_ends[t]).
typedef struct tessera_qsa_mqa_prefill_args {
  tessera_tensor q;           // [rows, Hi, D] bf16, f16 or f32
  tessera_tensor k;           // [keys, D] or [keys, 1, D], q's dtype
  tessera_tensor row_starts;  // int32 [rows]; below 0 is 0
  tessera_tensor row_ends;    // int32 [rows]; past the keys is their number
  tessera_tensor weights;     // optional f32 [rows, Hi]
  const float* scale;         // NULL: 1/sqrt(D)
  tessera_tensor scores;      // f32 [rows, keys]
} tessera_qsa_mqa_prefill_args;
TESSERA_API tessera_status tessera_qsa_mqa_prefill(const tessera_qsa_mqa_prefill_args* args,
                                                   const tessera_context* context);
TESSERA_API tessera_status tessera_qsa_mqa_prefill_workspace_size(const tessera_qsa_mqa_prefill_args* args,
                                                                  const tessera_context* context, size_t* bytes);

// The same scores of n rows for each request over its pages, of which a row sees its first context_lens.
typedef struct tessera_qsa_mqa_decode_args {
  tessera_tensor q;             // [B, n, Hi, D], or [B, Hi, D] for n = 1; bf16, f16 or f32
  tessera_tensor k_cache;       // [P, ps, 1, D] or [P, ps, D], q's dtype
  tessera_tensor page_table;    // int32 [B, max_pages]
  tessera_tensor context_lens;  // int32 [B], or [B, n]: one for each row; in keys
  tessera_tensor weights;       // optional f32 [B, n, Hi], or [B, Hi]
  const float* scale;           // NULL: 1/sqrt(D)
  tessera_tensor scores;        // f32 [B * n, max_model_len]
} tessera_qsa_mqa_decode_args;
TESSERA_API tessera_status tessera_qsa_mqa_decode(const tessera_qsa_mqa_decode_args* args,
                                                  const tessera_context* context);
TESSERA_API tessera_status tessera_qsa_mqa_decode_workspace_size(const tessera_qsa_mqa_decode_args* args,
                                                                 const tessera_context* context, size_t* bytes);

// The topk blocks of each row with the best scores, of which none are stored: higher first, -0 equal to +0, NaN below
// every number, equal ones by lower id. Ids ascend, left-packed, then -1; rows that see no more than topk blocks list
// them all. At least one of the two results is given.
typedef struct tessera_qsa_select_args {
  tessera_qsa_index index;
  int64_t topk;            // at least 1; Qwen4-Exp: 512
  tessera_tensor indices;  // int32 [B, Q, topk] or [total_q, topk]
  // int32 [B, Q, topk * bs + bs - 1] or [total_q, ...]: what tessera_qsa_expand_blocks makes of them at the rows' positions,
  // or at the last token of seq_lens_k, if that is before; of a row that belongs to no request nothing.
  tessera_tensor token_indices;
  // Optional, together: what tessera_qsa_screen_keys makes of the keys. Rows of decode find by them which keys need not be
  // read; the result is the same. With numbers that are not of these keys, blocks may be missed.
  tessera_tensor screen_codes;   // int8, of k's shape
  tessera_tensor screen_scales;  // f32, of k's shape without D
} tessera_qsa_select_args;
TESSERA_API tessera_status tessera_qsa_select(const tessera_qsa_select_args* args, const tessera_context* context);
TESSERA_API tessera_status tessera_qsa_select_workspace_size(const tessera_qsa_select_args* args,
                                                             const tessera_context* context, size_t* bytes);

// The same selection from scores that are at hand; a score of -inf is never selected.
typedef struct tessera_topk_blocks_args {
  tessera_tensor scores;   // f32 [..., N], rank 1 to 5
  tessera_tensor indices;  // int32 [..., k]
} tessera_topk_blocks_args;
TESSERA_API tessera_status tessera_topk_blocks(const tessera_topk_blocks_args* args, const tessera_context* context);
TESSERA_API tessera_status tessera_topk_blocks_workspace_size(const tessera_topk_blocks_args* args,
                                                              const tessera_context* context, size_t* bytes);

// ---- QSA: attention over token lists -----------------------------------------------------------------------------------

// softmax(scale * q k^T) v over the tokens of each row's list, which all its heads share. Ids are the request's own tokens,
// in any order; one that is negative, after the row's position or not below the request's length is skipped, as is one
// behind a page outside [0, P); one that stands twice counts twice. Rows of no request, rows at or past seq_lens_q[b]
// within their request and rows without a valid id give out = 0, lse = -inf.
typedef struct tessera_qsa_sparse_attention_args {
  tessera_tensor q;  // [B, Q, Hq, D] or packed [total_q, Hq, D]; bf16, f16 or f32
  // [B, Sk, Hkv, D], packed [total_k, Hkv, D], paged [P, ps, Hkv, D] or, in the packed layout of tessera_append_kv_args,
  // paged [P, Hkv, ceil(D/e), ps, e]; q's dtype.
  tessera_tensor k;
  tessera_tensor v;              // likewise, with Dv
  tessera_tensor token_indices;  // int32 [B, Q, W] or [total_q, W]
  // Or rows of k and v [slots, Hkv, D] (or slots of packed pages) themselves, for packed q: int32 [total_q, W]. Then ids
  // outside [0, slots) are all that is skipped, and none of the tensors up to page_table, nor gate, is given.
  tessera_tensor selected_kv_indices;
  // Packed rows of more than one request: where each begins, or each row's request, or both, and then a row outside its
  // request's bounds belongs to none. Broken bounds: see tessera_sequences.
  tessera_tensor cu_seqlens_q;     // int32 [B + 1]
  tessera_tensor token_to_req;     // int32 [total_q]; a row with a value outside [0, B) belongs to none
  tessera_tensor query_positions;  // optional int32 [B, Q] or [total_q]; absent: the last row meets the last key
  tessera_tensor seq_lens_q;       // optional int32 [B]: rows that count
  tessera_tensor cu_seqlens_k;     // packed keys: int32 [B + 1]
  tessera_tensor seq_lens_k;       // optional int32 [B]: keys that exist, at most what the tensors hold
  tessera_tensor page_table;       // paged keys: int32 [B, max_pages], as in tessera_sequences
  // Tokens that an entry of page_table names; 0: ps. In the packed layout a multiple of ps, n ps: entry i names pages
  // [n i, n (i + 1)). So pages of 4 tokens, which kernels read fastest, serve a table of larger ones.
  int64_t page_size;
  const float* softmax_scale;  // NULL: 1/sqrt(D)
  int64_t num_splits;          // parts that each row's list is cut into; 0: by its length
  tessera_tensor gate;  // optional [B, Q, Hq, Dv] or [B, Q, Hq], or packed; q's dtype or f32: out *= sigmoid(gate)
  tessera_tensor out;   // [B, Q, Hq, Dv] or [total_q, Hq, Dv], q's dtype
  tessera_tensor lse;   // optional f32 [B, Q, Hq] or [total_q, Hq]
} tessera_qsa_sparse_attention_args;
TESSERA_API tessera_status tessera_qsa_sparse_attention(const tessera_qsa_sparse_attention_args* args,
                                                        const tessera_context* context);
TESSERA_API tessera_status tessera_qsa_sparse_attention_workspace_size(const tessera_qsa_sparse_attention_args* args,
                                                                       const tessera_context* context, size_t* bytes);
TESSERA_API tessera_status tessera_qsa_sparse_attention_explain(const tessera_qsa_sparse_attention_args* args,
                                                                const tessera_context* context, char* text,
                                                                size_t capacity);

// ---- Measuring ------------------------------------------------------------------------------------------------

typedef enum tessera_ceiling_kind TESSERA_ANY_INT {
  TESSERA_CEILING_F32_FMA = 0,   // GFLOP/s of independent f32 FMAs
  TESSERA_CEILING_BF16_DOT = 1,  // GFLOP/s of bf16 pair dots (avx512bf16 and neonbf16 only)
  TESSERA_CEILING_STREAM = 2     // GB/s of a sequential read of memory larger than the caches
} tessera_ceiling_kind;

// Runs the best loop that `variant` may use on num_threads threads for about `seconds` of wall time.
TESSERA_API tessera_status tessera_measure_ceiling(tessera_ceiling_kind kind, const char* variant, int32_t num_threads,
                                                   double seconds, double* value);

// GB/s of a bare read of `count` pieces of `bytes` each, which bounds an operator that gathers them: four pieces
// interleaved, prefetched at the best of a few distances. `bytes` is a multiple of 64, each address one of 4.
TESSERA_API tessera_status tessera_measure_gather(const void* const* pieces, int64_t count, int64_t bytes,
                                                  const char* variant, int32_t num_threads, double seconds,
                                                  double* value);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_TESSERA_H_
