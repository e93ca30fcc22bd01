// Keys of blocks out of the raw keys of their tokens: checked, and the same for whole prompts and for tokens as they come.
#ifndef TESSERA_OPS_COMPRESS_KEYS_PROBLEM_H_
#define TESSERA_OPS_COMPRESS_KEYS_PROBLEM_H_

#include <stdint.h>

#include "tessera/tessera.h"

namespace tessera::compress_keys {

// Tables of a call lie on its stack.
constexpr int64_t kMaxDim = 4096;

// Rows of D features: those of requests, of slots of a ring, or of pages. Strides in bytes.
struct Rows {
  char* data;
  int64_t outer, row;
  char* at(int64_t i, int64_t j) const { return data + i * outer + j * row; }
};

// What makes a key of rows.
struct Rule {
  tessera_dtype dtype;
  int64_t dim;    // D
  int64_t block;  // bs
  int64_t half;   // rotary_dim / 2: pairs that RoPE turns
  tessera_tensor norm_weight;
  float eps;
  double theta;
  bool round;  // intermediates, too
};

// How far each block turns: by its position, or by cosines and sines. Of request b and its block i; strides count elements.
struct Rotation {
  const int32_t* positions;  // null: the caller of the kernel knows
  const float* cos;          // [half]; null: by position
  const float* sin;
  int64_t position_request, position_block;
  int64_t cos_request, cos_block;
  int64_t sin_request, sin_block;
  int64_t blocks;  // of each request for which it says so
};

// Rule and Rotation as kernels read them.
struct Tables {
  float gain[kMaxDim];        // 1 + norm_weight
  double turns[kMaxDim / 2];  // per position, of each pair; not filled if cos and sin are given
};

struct Run {
  const char* data;
  int64_t stride;  // in bytes
  int64_t count;
};

// The tokens of a block in order: out of a ring whose end they may straddle, then out of the call.
struct Block {
  Run runs[3];
  int64_t position;
  const float* cos;  // [half]; null: by position
  const float* sin;
  void* out;  // [D]
};

struct Kernel {
  void (*compress)(const Rule&, const Tables&, const Block&);
};

struct Problem {
  Rule rule;
  Rotation rotation;
  Rows raw;  // of requests
  Rows out;
  int64_t requests;
  int64_t blocks;  // of each
};

}  // namespace tessera::compress_keys

#endif  // TESSERA_OPS_COMPRESS_KEYS_PROBLEM_H_
