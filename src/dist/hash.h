// A number that tells values apart, the same on every machine.
#ifndef TESSERA_DIST_HASH_H_
#define TESSERA_DIST_HASH_H_

#include <cstdint>

namespace tessera::dist {

// The finalizer of SplitMix64.
inline uint64_t hash(uint64_t value, uint64_t before) {
  uint64_t x = value + 0x9e3779b97f4a7c15u + before * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace tessera::dist

#endif  // TESSERA_DIST_HASH_H_
