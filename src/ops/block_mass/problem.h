#ifndef TESSERA_OPS_BLOCK_MASS_PROBLEM_H_
#define TESSERA_OPS_BLOCK_MASS_PROBLEM_H_

#include "ops/select_topk/problem.h"

namespace tessera::block_mass {

constexpr int64_t kDefaultBlock = 64;
constexpr int64_t kDefaultBlockQ = 64;
constexpr int64_t kDefaultStride = 8;

// A checked call.
struct Problem : select_topk::Problem {
  int64_t stride;  // of a list's tokens, the first, every stride-th after it and the last are sampled
  float scale;
};

}  // namespace tessera::block_mass

#endif  // TESSERA_OPS_BLOCK_MASS_PROBLEM_H_
