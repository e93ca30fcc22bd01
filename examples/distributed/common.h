// What the examples share: numbers that are alike on all ranks, lists of blocks, and times of the slowest rank.
#ifndef TESSERA_EXAMPLES_DISTRIBUTED_COMMON_H_
#define TESSERA_EXAMPLES_DISTRIBUTED_COMMON_H_

#include <tessera/mpi.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

constexpr int64_t kHeads = 16, kKvHeads = 2, kDim = 128, kBlock = 128, kTopk = 16;

// Element i of a tensor: one of 512 values in [-1, 1).
inline float value(uint64_t tensor, uint64_t i) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + tensor;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>((x >> 40) % 512) / 256 - 1;
}

inline std::vector<float> tensor(uint64_t name, int64_t elements) {
  std::vector<float> all(static_cast<size_t>(elements));
  for (size_t i = 0; i < all.size(); ++i) all[i] = value(name, i);
  return all;
}

// One list per query block: its own block, and every so many before it.
inline std::vector<int32_t> causal_lists(int64_t blocks) {
  std::vector<int32_t> ids(static_cast<size_t>(blocks * kTopk), -1);
  for (int64_t list = 0; list < blocks; ++list) {
    const int64_t step = std::max<int64_t>(1, list / kTopk);
    for (int64_t i = 0; i < kTopk && list - i * step >= 0; ++i) {
      ids[static_cast<size_t>(list * kTopk + i)] = static_cast<int32_t>(list - i * step);
    }
  }
  return ids;
}

// A rank that waits by polling would slow down one that works on the same core.
inline void barrier() {
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  const timespec pause = {0, 500000};
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;) nanosleep(&pause, nullptr);
}

// Seconds until the last rank has done it.
template <class Work>
double seconds(const Work& work) {
  barrier();
  const double start = MPI_Wtime();
  work();
  barrier();
  return MPI_Wtime() - start;
}

inline void report(int64_t tokens, int ranks, double one, double several) {
  std::printf("%lld tokens: 1 rank %.1f ms, %d ranks %.1f ms, %.2fx, efficiency %.1f%%\n",
              static_cast<long long>(tokens), one * 1e3, ranks, several * 1e3, one / several,
              100 * one / several / ranks);
}

#endif  // TESSERA_EXAMPLES_DISTRIBUTED_COMMON_H_
