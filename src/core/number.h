// bf16 and f16 as bit patterns, and their conversions: exact to f32; from f32 rounded to nearest even, with NaN kept a
// quiet NaN and f16 overflow (|x| >= 65520) giving infinity.
//
// Every function here is `static`: the header is also included by files that are compiled with ISA flags. With external
// linkage the linker keeps one copy of an inline function for the whole library, possibly the AVX one, which would
// then run on a CPU without AVX. Internal linkage gives each object file its own. For the same reason nothing from
// the standard library is used but <cstdint>.
//
// The conversions have no branches, so that loops over them vectorise, and no result depends on f32 subnormals, so that
// they are right in a host that has set flush-to-zero.
#ifndef TESSERA_CORE_NUMBER_H_
#define TESSERA_CORE_NUMBER_H_

#include <cstdint>

namespace tessera {

struct bf16 {
  uint16_t bits;
};

struct f16 {
  uint16_t bits;
};

static inline uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
static inline float bits_float(uint32_t x) { return __builtin_bit_cast(float, x); }

// condition ? a : b with both always computed, which lets GCC vectorise what it would make a branch of.
static inline uint32_t select(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

static inline float to_float(float x) { return x; }

static inline float to_float(bf16 x) { return bits_float(static_cast<uint32_t>(x.bits) << 16); }

static inline float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  const uint32_t rebias = select(magnitude >= 0x7c00u, 224u << 23, 112u << 23);  // infinity, NaN: the top exponent
  const uint32_t normal = (magnitude << 13) + rebias;
  const uint32_t subnormal = float_bits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  return bits_float(sign | select(magnitude < 0x400u, subnormal, normal));
}

static inline void round_float(float x, float* y) { *y = x; }

static inline void round_float(float x, bf16* y) {
  const uint32_t u = float_bits(x);
  const uint32_t nearest = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (u >> 16) | 0x40u;
  y->bits = static_cast<uint16_t>(select((u & 0x7fffffffu) > 0x7f800000u, quiet_nan, nearest));
}

static inline void round_float(float x, f16* y) {
  const uint32_t u = float_bits(x);
  const uint32_t magnitude = u & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // One unit in the last place of 0.5f is 2^-24, the spacing of f16 subnormals: the addition does the rounding.
  const uint32_t subnormal = float_bits(bits_float(magnitude) + 0.5f) - float_bits(0.5f);
  const uint32_t quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const uint32_t finite = select(magnitude < 0x38800000u, subnormal, select(magnitude < 0x477ff000u, normal, 0x7c00u));
  y->bits = static_cast<uint16_t>(((u >> 16) & 0x8000u) | select(magnitude > 0x7f800000u, quiet_nan, finite));
}

template <class T>
static inline T from_float(float x) {
  T y;
  round_float(x, &y);
  return y;
}

}  // namespace tessera

#endif  // TESSERA_CORE_NUMBER_H_
