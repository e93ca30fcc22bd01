// Context-parallel attention: every rank has some of the pages of keys; partial results are merged in the order of ranks.
//   mpirun -n 4 context_parallel [tokens]
#include <tessera/mpi.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <tessera/parallel.hpp>

#include "common.h"

namespace {

// The pages of a rank, of one block each, and the table that names them.
struct Cache {
  int64_t pages;
  std::vector<int32_t> table;
  std::vector<float> k, v;

  Cache(int64_t tokens, int64_t rank, int64_t size) : table(static_cast<size_t>(tokens / kBlock)) {
    const auto length = static_cast<int32_t>(tokens);
    const auto width = static_cast<int64_t>(table.size());
    pages = tessera::own_pages({.ownership = TESSERA_OWN_STRIPED,
                                .rank = rank,
                                .size = size,
                                .page_size = kBlock,
                                .seqused_k = tessera::tensor(&length, {1}),
                                .owners = {},
                                .page_table = tessera::tensor(table.data(), {1, width})});
    const int64_t page = kKvHeads * kBlock * kDim;
    k.resize(static_cast<size_t>(pages * page));
    v.resize(k.size());
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t j = 0; table[static_cast<size_t>(i)] >= 0 && j < page; ++j) {
        const auto to = static_cast<size_t>(table[static_cast<size_t>(i)] * page + j);
        k[to] = value(2, static_cast<uint64_t>(i * page + j));
        v[to] = value(3, static_cast<uint64_t>(i * page + j));
      }
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) / kBlock * kBlock : 1024;
  tessera_mpi mpi = {MPI_COMM_WORLD};
  const tessera_communicator ranks = tessera_mpi_communicator(&mpi, TESSERA_CONTEXT_PARALLEL);
  const tessera::Context one_thread = {.executor = tessera::threads(1)};

  const auto length = static_cast<int32_t>(tokens);
  const std::vector<float> q = tensor(1, tokens * kHeads * kDim);
  const std::vector<int32_t> lists = causal_lists(tokens / kBlock);
  const auto args_for = [&](const Cache& cache, std::vector<float>* out) -> tessera::BlockSparseGqaPrefill {
    return {.q = tessera::tensor(q.data(), {1, tokens, kHeads, kDim}),
            .k = tessera::tensor(cache.k.data(), {cache.pages, kKvHeads, kBlock, kDim}),
            .v = tessera::tensor(cache.v.data(), {cache.pages, kKvHeads, kBlock, kDim}),
            .kv_indices = tessera::tensor(lists.data(), {1, tokens / kBlock, kTopk}),
            .block_size = kBlock,
            .page_table = tessera::tensor(cache.table.data(), {1, tokens / kBlock}),
            .seqused_k = tessera::tensor(&length, {1}),
            .out = tessera::tensor(out->data(), {1, tokens, kHeads, kDim})};
  };

  const Cache own(tokens, ranks.rank, ranks.size), whole(tokens, 0, 1);
  std::vector<float> alone(q.size()), shared(q.size()), again(q.size());
  const double one = seconds([&] {
    if (ranks.rank == 0) tessera::block_sparse_gqa_prefill(args_for(whole, &alone), one_thread);
  });
  if (ranks.rank != 0) tessera::block_sparse_gqa_prefill(args_for(whole, &alone), one_thread);
  const double several = seconds([&] { tessera::block_sparse_gqa_prefill(args_for(own, &shared), ranks, one_thread); });
  tessera::block_sparse_gqa_prefill(args_for(own, &again), ranks, one_thread);

  float off = 0;
  for (size_t i = 0; i < shared.size(); ++i) off = std::max(off, std::fabs(shared[i] - alone[i]));
  const bool same = std::memcmp(shared.data(), again.data(), shared.size() * sizeof(float)) == 0;
  const bool good = same && off <= 1e-5f;  // values are below 1, and so are their averages
  if (!good)
    std::printf("FAILED: rank %d is off by %g%s\n", ranks.rank, off, same ? "" : ", and differs from run to run");
  if (ranks.rank == 0 && good) std::printf("ok: %g from one process, the same bits on every run\n", off);
  if (ranks.rank == 0) report(tokens, ranks.size, one, several);
  MPI_Finalize();
  return good ? 0 : 1;
}
