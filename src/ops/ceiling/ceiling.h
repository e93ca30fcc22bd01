// How fast this machine multiplies and reads when nothing else is in the way: what benchmarks divide by.
#ifndef TESSERA_OPS_CEILING_CEILING_H_
#define TESSERA_OPS_CEILING_CEILING_H_

#include <stdint.h>

#include "core/status.h"
#include "tessera/tessera.h"

namespace tessera::ceiling {

constexpr int kMaxAccumulators = 24;
constexpr int kMaxLanes = 16;

constexpr int kStreams = 4;
constexpr int64_t kLine = 64;

// What a gather prefetches while it reads byte b of its pieces: byte b + bytes of `here`, or what is left of it in `next`.
struct Ahead {
  const char* const* here;  // [kStreams]; null: nothing
  const char* const* next;
  int64_t bytes;  // less than a piece
};

// The loops of one ISA struct.
struct Kernel {
  // `steps` times one dot step on every accumulator. state: f32 [kMaxAccumulators * kMaxLanes], any finite numbers.
  void (*multiply)(float* state, int64_t steps);
  // The sum of n floats, n a multiple of kReadFloats.
  float (*read)(const float* p, int64_t n);
  // The largest float of kStreams pieces of `bytes`, a multiple of kLine, read side by side.
  float (*gather)(const char* const* pieces, const Ahead& ahead, int64_t bytes);
  int flops;  // of one step
};

// What `read` takes in one round: eight of the widest vectors.
constexpr int64_t kReadFloats = 8 * kMaxLanes;

// Units of *value: GFLOP/s, or GB/s for TESSERA_CEILING_STREAM. variant null: the best one that has the kind.
Status measure(tessera_ceiling_kind kind, const char* variant, int32_t num_threads, double seconds, double* value);

// GB/s over `count` pieces of `bytes` each.
Status measure_gather(const void* const* pieces, int64_t count, int64_t bytes, const char* variant, int32_t num_threads,
                      double seconds, double* value);

}  // namespace tessera::ceiling

#endif  // TESSERA_OPS_CEILING_CEILING_H_
