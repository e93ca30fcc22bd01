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

// The arguments that say how blocks turn; each may be missing.
struct Turns {
  const char* positions_name;
  tessera_tensor positions;  // has passed as int32 of two axes
  tessera_tensor cos, sin;
  const char* axes;  // of cos and sin, for messages
  int64_t requests;
  int64_t blocks;  // of each request in cos and sin; negative: any number
};
// The second axis of the positions is taken for blocks.
Rotation check_rotation(const Turns& turns, const Rule& rule, Checker* c);

// `t` has passed as a tensor of three axes, or, where its last but one is 1, of four.
Rows rows_of(const tessera_tensor& t);

Status check(const tessera_qsa_compress_keys_args& args, Problem* problem);

}  // namespace tessera::compress_keys

#endif  // TESSERA_OPS_COMPRESS_KEYS_CHECK_H_
