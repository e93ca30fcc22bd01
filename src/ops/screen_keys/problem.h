// Keys and their copies of 8 bits: checked.
#ifndef TESSERA_OPS_SCREEN_KEYS_PROBLEM_H_
#define TESSERA_OPS_SCREEN_KEYS_PROBLEM_H_

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera::screen_keys {

struct Problem {
  tessera_tensor keys;    // [..., D]
  tessera_tensor codes;   // [..., D]
  tessera_tensor scales;  // [...]
  int64_t rows;           // product of [...]
  int64_t dim;            // D
};

}  // namespace tessera::screen_keys

#endif  // TESSERA_OPS_SCREEN_KEYS_PROBLEM_H_
