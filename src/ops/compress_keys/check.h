// The only validation of compress_keys' arguments, and of what appending has in common with it.
#ifndef TESSERA_OPS_COMPRESS_KEYS_CHECK_H_
#define TESSERA_OPS_COMPRESS_KEYS_CHECK_H_

#include "core/check.h"
#include "core/status.h"
#include "ops/compress_keys/problem.h"

namespace tessera::compress_keys {

inline constexpr auto kKeyTypes = {TESSERA_BF16, TESSERA_F16, TESSERA_F32};

// Raw keys have passed as a tensor. Their last axis is D.
Rule check_rule(const tessera_qsa_key_rule& rule, const tessera_tensor& raw_keys, Checker* c);

// What says how blocks turn, as arguments: each may be missing. `axes`: of cos and sin. With `blocks` >= 0 they have so
// many of each request, else as many as they like.
struct Turns {
  const char* positions_name;
  tessera_tensor positions, cos, sin;
  const char* axes;
  int64_t requests;
  int64_t blocks;
};
// Of the positions, the checks that are the same for a token and a block each are made.
Rotation check_rotation(const Turns& turns, const Rule& rule, Checker* c);

// `t` has passed as a tensor of three axes, or, where its last but one is 1, of four.
Rows rows_of(const tessera_tensor& t);

Status check(const tessera_qsa_compress_keys_args& args, Problem* problem);

}  // namespace tessera::compress_keys

#endif  // TESSERA_OPS_COMPRESS_KEYS_CHECK_H_
