/* Two ranks share the rows of a call; each gets all of the result. */
#include <stdio.h>
#include <tessera/mpi.h>

int main(int argc, char** argv) {
  static const float q[8] = {0}, k[2] = {1, 2}, v[2] = {10, 20};
  static const int32_t lists[8] = {0};
  const int64_t rows[] = {1, 8, 1, 1}, keys[] = {1, 2, 1, 1}, blocks[] = {1, 8, 1};
  float out[8] = {0};
  tessera_block_sparse_gqa_prefill_args args = {0};
  tessera_mpi mpi;
  tessera_communicator ranks;
  tessera_status status;
  int i, wrong = 0;

  MPI_Init(&argc, &argv);
  mpi.comm = MPI_COMM_WORLD;
  ranks = tessera_mpi_communicator(&mpi, TESSERA_QUERY_PARALLEL);
  args.q = tessera_dense(q, TESSERA_F32, 4, rows);
  args.k = tessera_dense(k, TESSERA_F32, 4, keys);
  args.v = tessera_dense(v, TESSERA_F32, 4, keys);
  args.kv_indices = tessera_dense(lists, TESSERA_I32, 3, blocks);
  args.block_q = 1;
  args.mask = TESSERA_MASK_NONE;
  args.out = tessera_dense(out, TESSERA_F32, 4, rows);
  status = tessera_block_sparse_gqa_prefill_parallel(&args, &ranks, NULL);
  for (i = 0; i < 8; ++i) wrong += out[i] < 15.0f || out[i] > 15.0f;
  if (status != TESSERA_OK) printf("%s\n", tessera_last_error());
  MPI_Finalize();
  return status != TESSERA_OK || wrong != 0;
}
