// tessera/parallel.hpp: the calls of parallel.h for C++20, beside those of tessera.hpp. A communicator for MPI is in mpi.h.
#ifndef TESSERA_PARALLEL_HPP_
#define TESSERA_PARALLEL_HPP_

#include "tessera/parallel.h"
#include "tessera/tessera.hpp"

namespace tessera {

inline void block_sparse_gqa_prefill(const BlockSparseGqaPrefill& args, const tessera_communicator& ranks,
                                     const Context& context = {}) {
  const auto a = args.c();
  const tessera_context c = context.c();
  throw_if_failed(tessera_block_sparse_gqa_prefill_parallel(&a, &ranks, &c));
}
inline void msa_sparse_attention(const MsaSparseAttention& args, const tessera_communicator& ranks,
                                 const Context& context = {}) {
  const auto a = args.c();
  const tessera_context c = context.c();
  throw_if_failed(tessera_msa_sparse_attention_parallel(&a, &ranks, &c));
}
inline void qsa_sparse_attention(const QsaSparseAttention& args, const tessera_communicator& ranks,
                                 const Context& context = {}) {
  const auto a = args.c();
  const tessera_context c = context.c();
  throw_if_failed(tessera_qsa_sparse_attention_parallel(&a, &ranks, &c));
}

inline void msa_select(const MsaSelect& args, const tessera_communicator& ranks, const Context& context = {}) {
  const auto a = args.c();
  const tessera_context c = context.c();
  throw_if_failed(tessera_msa_select_parallel(&a, &ranks, &c));
}
inline void qsa_select(const QsaSelect& args, const tessera_communicator& ranks, const Context& context = {}) {
  const auto a = args.c();
  const tessera_context c = context.c();
  throw_if_failed(tessera_qsa_select_parallel(&a, &ranks, &c));
}

// Fills page_table, int32 [B, max_pages], and returns how many pages are the rank's own.
inline int64_t own_pages(const tessera_own_pages_args& args) {
  int64_t pages = 0;
  throw_if_failed(tessera_own_pages(&args, &pages));
  return pages;
}

}  // namespace tessera

#endif  // TESSERA_PARALLEL_HPP_
