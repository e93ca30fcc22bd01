// Query-parallel attention: every rank has all keys and computes some of the rows; the same bits as one process.
//   mpirun -n 4 q_parallel [tokens]
#include <tessera/mpi.h>

#include <cstdlib>
#include <cstring>
#include <tessera/parallel.hpp>

#include "common.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) / kBlock * kBlock : 1024;
  tessera_mpi mpi = {MPI_COMM_WORLD};
  const tessera_communicator ranks = tessera_mpi_communicator(&mpi, TESSERA_QUERY_PARALLEL);
  const tessera::Context one_thread = {.executor = tessera::threads(1)};

  const std::vector<float> q = tensor(1, tokens * kHeads * kDim), k = tensor(2, tokens * kKvHeads * kDim),
                           v = tensor(3, tokens * kKvHeads * kDim);
  const std::vector<int32_t> lists = causal_lists(tokens / kBlock);
  std::vector<float> shared(q.size()), alone(q.size());
  tessera::BlockSparseGqaPrefill args = {.q = tessera::tensor(q.data(), {1, tokens, kHeads, kDim}),
                                         .k = tessera::tensor(k.data(), {1, tokens, kKvHeads, kDim}),
                                         .v = tessera::tensor(v.data(), {1, tokens, kKvHeads, kDim}),
                                         .kv_indices = tessera::tensor(lists.data(), {1, tokens / kBlock, kTopk}),
                                         .block_size = kBlock};

  args.out = tessera::tensor(alone.data(), {1, tokens, kHeads, kDim});
  const double one = seconds([&] {
    if (ranks.rank == 0) tessera::block_sparse_gqa_prefill(args, one_thread);
  });
  if (ranks.rank != 0) tessera::block_sparse_gqa_prefill(args, one_thread);
  args.out = tessera::tensor(shared.data(), {1, tokens, kHeads, kDim});
  const double several = seconds([&] { tessera::block_sparse_gqa_prefill(args, ranks, one_thread); });

  const bool same = std::memcmp(shared.data(), alone.data(), shared.size() * sizeof(float)) == 0;
  if (!same) std::printf("FAILED: rank %d has other bits than one process\n", ranks.rank);
  if (ranks.rank == 0 && same) std::printf("ok: the bits of one process\n");
  if (ranks.rank == 0) report(tokens, ranks.size, one, several);
  MPI_Finalize();
  return same ? 0 : 1;
}
