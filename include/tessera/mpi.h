// tessera/mpi.h: the communicator of tessera/parallel.h for MPI. For C99 and C++; header-only, since every MPI has an ABI of
// its own. CMake: find_package(tessera COMPONENTS mpi), target tessera::mpi.
//
//   tessera_mpi mpi = {MPI_COMM_WORLD};
//   tessera_communicator ranks = tessera_mpi_communicator(&mpi, TESSERA_QUERY_PARALLEL);
//   tessera_block_sparse_gqa_prefill_parallel(&args, &ranks, NULL);
//
// MPI is initialised by the caller, with MPI_THREAD_SERIALIZED at least if calls come from several threads. Messages have a
// tag of their own; a program that receives with MPI_ANY_TAG passes a duplicate of its communicator.
#ifndef TESSERA_MPI_H_
#define TESSERA_MPI_H_

// Not the C++ bindings that MPI 3 has dropped, and that would have to be linked.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>
#include <stdlib.h>

#include "tessera/parallel.h"

#define TESSERA_MPI_TAG 0x7E55

typedef struct tessera_mpi {
  MPI_Comm comm;
} tessera_mpi;

// What has been started: `count` messages.
typedef struct tessera_mpi_request {
  int count;
  MPI_Datatype row;
  MPI_Request* messages;
} tessera_mpi_request;

static inline int32_t tessera_mpi_wait(void* host, void* request) {
  tessera_mpi_request* const r = (tessera_mpi_request*)request;
  int failed = MPI_Waitall(r->count, r->messages, MPI_STATUSES_IGNORE);
  failed |= MPI_Type_free(&r->row);
  free(r->messages);
  free(r);
  (void)host;
  return failed;
}

// Counts are rows and not bytes, for an int does not count beyond 2 GiB.
static inline int32_t tessera_mpi_exchange(void* host, const void* send, const tessera_rows* sent, void* receive,
                                           const tessera_rows* received, int64_t row_bytes, void** request) {
  const MPI_Comm comm = ((tessera_mpi*)host)->comm;
  int size = 0;
  int failed = MPI_Comm_size(comm, &size);
  tessera_mpi_request* const r = (tessera_mpi_request*)malloc(sizeof(tessera_mpi_request));
  MPI_Request* const messages = (MPI_Request*)malloc(2 * (size_t)size * sizeof(MPI_Request));
  if (failed || r == NULL || messages == NULL) {
    free(messages);
    free(r);
    return 1;
  }
  r->count = 0;
  r->messages = messages;
  failed |= MPI_Type_contiguous((int)row_bytes, MPI_BYTE, &r->row);
  failed |= MPI_Type_commit(&r->row);
  for (int rank = 0; rank < size && !failed; ++rank) {
    char* const to = (char*)receive + received[rank].first * row_bytes;
    if (received[rank].count == 0) continue;
    failed |= MPI_Irecv(to, (int)received[rank].count, r->row, rank, TESSERA_MPI_TAG, comm, &messages[r->count++]);
  }
  for (int rank = 0; rank < size && !failed; ++rank) {
    const char* const from = (const char*)send + sent[rank].first * row_bytes;
    if (sent[rank].count == 0) continue;
    failed |= MPI_Isend(from, (int)sent[rank].count, r->row, rank, TESSERA_MPI_TAG, comm, &messages[r->count++]);
  }
  *request = r;
  return failed;
}

// Refers to *mpi.
static inline tessera_communicator tessera_mpi_communicator(tessera_mpi* mpi, tessera_parallel parallel) {
  tessera_communicator c;
  int rank = 0, size = 0;
  MPI_Comm_rank(mpi->comm, &rank);
  MPI_Comm_size(mpi->comm, &size);
  c.rank = rank;
  c.size = size;
  c.parallel = parallel;
  c.exchange_bytes = 0;
  c.host = mpi;
  c.exchange = tessera_mpi_exchange;
  c.wait = tessera_mpi_wait;
  return c;
}

#endif  // TESSERA_MPI_H_
