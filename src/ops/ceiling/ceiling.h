// How fast this machine multiplies and reads when nothing else is in the way: what benchmarks divide by.
#ifndef TESSERA_OPS_CEILING_CEILING_H_
#define TESSERA_OPS_CEILING_CEILING_H_

#include <stdint.h>

#include "core/status.h"
#include "tessera/tessera.h"

namespace tessera::ceiling {

constexpr int kMaxAccumulators = 24;
constexpr int kMaxLanes = 16;

// The loops of one ISA struct.
struct Kernel {
  // `steps` times one dot step on every accumulator. state: f32 [kMaxAccumulators * kMaxLanes], any finite numbers.
  void (*multiply)(float* state, int64_t steps);
  // The sum of n floats, n a multiple of kReadFloats.
  float (*read)(const float* p, int64_t n);
  int flops;  // of one step
};

// What `read` takes in one round: eight of the widest vectors.
constexpr int64_t kReadFloats = 8 * kMaxLanes;

// Units of *value: GFLOP/s, or GB/s for TESSERA_CEILING_STREAM. variant null: the best one that has the kind.
Status measure(tessera_ceiling_kind kind, const char* variant, int32_t num_threads, double seconds, double* value);

}  // namespace tessera::ceiling

#endif  // TESSERA_OPS_CEILING_CEILING_H_
