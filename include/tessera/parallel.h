// tessera/parallel.h: calls of tessera.h that several processes make together. For C99 and for any C++ from C++11 on.
#ifndef TESSERA_PARALLEL_H_
#define TESSERA_PARALLEL_H_

#include "tessera/tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- The ranks and how they share ----------------------------------------------------------------------------------------

// Calls that the ranks of a job make together: all of them the same call, and all get the whole result. The library moves no
// bytes between processes; the two functions of a communicator do, and tessera/mpi.h has them for MPI.
typedef enum tessera_parallel TESSERA_ANY_INT {
  // Every rank has all keys. Each computes some of the rows, shared out by the work of their lists. The result has the bits
  // of one process, for any number of ranks.
  TESSERA_QUERY_PARALLEL = 0,
  // Every rank has some of the pages of keys, and -1 for the others in its page_table; rows and lists are given to all, and
  // ids count as if there were one process. Each page that holds keys is one rank's. Partial results, in out's dtype with an
  // lse, are merged in the order of the ranks: the same bits on every run with as many ranks and the same pages.
  TESSERA_CONTEXT_PARALLEL = 1
} tessera_parallel;

typedef struct tessera_rows {
  int64_t first;
  int64_t count;
} tessera_rows;

typedef struct tessera_communicator {
  int32_t rank;
  int32_t size;
  tessera_parallel parallel;
  int64_t exchange_bytes;  // context-parallel: partial results that are made before they are sent; 0: 64 MiB
  void* host;              // passed to the functions
  // Starts to send rows sent[r] of `send` to each rank r, and to receive rows received[r] of `receive` from it; a row has
  // row_bytes bytes. Does not wait for other ranks. Both arrays have `size` entries, which are gone when the function returns;
  // no rows (count 0) are no message. Exchanges are started in the same order on all ranks. Returns 0, or the engine failed.
  int32_t (*exchange)(void* host, const void* send, const tessera_rows* sent, void* receive,
                      const tessera_rows* received, int64_t row_bytes, void** request);
  // Returns when all of it has been sent and received. Called once for every exchange that has been started.
  int32_t (*wait)(void* host, void* request);
} tessera_communicator;

// ---- Calls ---------------------------------------------------------------------------------------------------------------

// Before and after each piece of work ranks tell each other whether all is well. A call that fails on any rank, or that is not
// the same call everywhere (shapes, dtypes, options, lengths, owners of pages), fails on all of them with one message.
// context.workspace is not given. Context-parallel keys are in pages.
TESSERA_API tessera_status tessera_block_sparse_gqa_prefill_parallel(const tessera_block_sparse_gqa_prefill_args* args,
                                                                     const tessera_communicator* communicator,
                                                                     const tessera_context* context);
TESSERA_API tessera_status tessera_msa_sparse_attention_parallel(const tessera_msa_sparse_attention_args* args,
                                                                 const tessera_communicator* communicator,
                                                                 const tessera_context* context);
TESSERA_API tessera_status tessera_qsa_sparse_attention_parallel(const tessera_qsa_sparse_attention_args* args,
                                                                 const tessera_communicator* communicator,
                                                                 const tessera_context* context);
// Context-parallel only. Pages are whole blocks; screen_codes and screen_scales are not given.
TESSERA_API tessera_status tessera_msa_select_parallel(const tessera_msa_select_args* args,
                                                       const tessera_communicator* communicator,
                                                       const tessera_context* context);
TESSERA_API tessera_status tessera_qsa_select_parallel(const tessera_qsa_select_args* args,
                                                       const tessera_communicator* communicator,
                                                       const tessera_context* context);
// In the place of such a call, by a rank that has failed before it could make it: the others' calls then fail with `status`
// and `message`, which is what this returns, too.
TESSERA_API tessera_status tessera_parallel_failed(const tessera_communicator* communicator, tessera_status status,
                                                   const char* message);

// ---- Plans ---------------------------------------------------------------------------------------------------------------

typedef enum tessera_ownership TESSERA_ANY_INT {
  TESSERA_OWN_CONTIGUOUS = 0,  // rank r has one run of each request's pages; all runs are equally long
  TESSERA_OWN_STRIPED = 1,     // page i of request b is that of rank (b + i) % size: a request may grow
  TESSERA_OWN_BY_PAGE = 2      // as `owners` says
} tessera_ownership;

// The page_table of a rank for context-parallel calls: its own pages, numbered 0, 1, ... in the order of requests and of
// pages; -1 for the others and past the last.
typedef struct tessera_own_pages_args {
  tessera_ownership ownership;
  int64_t rank;
  int64_t size;               // number of ranks
  int64_t page_size;          // tokens of a page
  tessera_tensor seqused_k;   // int32 [B]: tokens of each request, those to come included
  tessera_tensor owners;      // by page: int32 [B, max_pages]; outside [0, size): no rank's
  tessera_tensor page_table;  // int32 [B, max_pages], written
} tessera_own_pages_args;
// *pages: how many are the rank's own.
TESSERA_API tessera_status tessera_own_pages(const tessera_own_pages_args* args, int64_t* pages);

// Cuts items into `parts` runs of nearly equal work, [bounds[i], bounds[i + 1]) for i < parts. Any of them may be empty.
TESSERA_API tessera_status tessera_partition(const int64_t* work, int64_t items, int64_t parts, int64_t* bounds);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_PARALLEL_H_
