// Portable C++: a vector of four floats that any compiler can lower. The complete list of what a kernel may ask of an
// ISA, with the meaning of each step; the other structs in this folder follow it name by name.
#ifndef TESSERA_ISA_SCALAR_H_
#define TESSERA_ISA_SCALAR_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/number.h"
#include "isa/exp2.h"

namespace tessera {

struct scalar {
  static constexpr int kLanes = 4;      // f32 lanes of a vector
  static constexpr int kRows = 4;       // micro-kernel: rows ...
  static constexpr int kVecs = 2;       // ... times vectors of accumulators; also the panel width in vectors
  static constexpr int kPair = 1;       // operands in one 32-bit unit of a packed panel
  static constexpr int kTileRows = 64;  // (token, head) rows of an attention tile

  using operand = float;  // what the micro-kernel multiplies
  struct vec {
    float x[kLanes];
  };
  using unit = vec;  // kLanes units

  template <class F>
  static vec each(F f) {
    vec r;
    for (int i = 0; i < kLanes; ++i) r.x[i] = f(i);
    return r;
  }

  // f32 vectors.
  static vec set1(float a) {
    return each([&](int) { return a; });
  }
  static vec load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  // A loop, not memcpy(): that would keep GCC from vectorising the loops around it.
  static void store(float* p, vec a) {
    for (int i = 0; i < kLanes; ++i) p[i] = a.x[i];
  }
  static vec add(vec a, vec b) {
    return each([&](int i) { return a.x[i] + b.x[i]; });
  }
  static vec mul(vec a, vec b) {
    return each([&](int i) { return a.x[i] * b.x[i]; });
  }
  // a * b + c, fused where the hardware fuses.
  static vec fma(vec a, vec b, vec c) {
    return each([&](int i) { return a.x[i] * b.x[i] + c.x[i]; });
  }
  // The larger; b where a is NaN.
  static vec max(vec a, vec b) {
    return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
  }
  // Comparisons give one bit for each lane, lane 0 lowest. Nothing is greater than a NaN, or less.
  static unsigned greater(vec a, vec b) {
    unsigned bits = 0;
    for (int i = 0; i < kLanes; ++i) bits |= a.x[i] > b.x[i] ? 1u << i : 0u;
    return bits;
  }
  static unsigned not_at_most(vec a, vec b) {
    unsigned bits = 0;
    for (int i = 0; i < kLanes; ++i) bits |= a.x[i] <= b.x[i] ? 0u : 1u << i;
    return bits;
  }
  // Stores the lanes that have a bit side by side, and first_id + lane for each; may write kLanes of both. Returns how many.
  static int store_chosen(float* to, int32_t* ids, vec a, int32_t first_id, unsigned bits) {
    int n = 0;
    for (int i = 0; i < kLanes; ++i) {
      to[n] = a.x[i];
      ids[n] = first_id + i;
      n += static_cast<int>(bits >> i & 1);
    }
    return n;
  }
  // Lanes n and above become `fill`.
  static vec keep_first(vec a, int n, float fill) {
    return each([&](int i) { return i < n ? a.x[i] : fill; });
  }
  static float reduce_add(vec a) { return (a.x[0] + a.x[2]) + (a.x[1] + a.x[3]); }
  static float reduce_max(vec a) {
    float m = a.x[0];
    for (int i = 1; i < kLanes; ++i) m = a.x[i] > m ? a.x[i] : m;
    return m;
  }
  // 2^x for x <= 127; 0 below -127; NaN stays NaN. kExact: 2e-7 relative, else 3e-6.
  template <bool kExact>
  static vec exp2(vec a) {
    return each([&](int i) {
      const float x = a.x[i] < -127.0f ? -127.0f : a.x[i];
      const float n = nearbyintf(x);
      const float f = x - n;
      float p = Exp2Poly<kExact>::kC[Exp2Poly<kExact>::kDegree];
      for (int k = Exp2Poly<kExact>::kDegree - 1; k >= 0; --k) p = p * f + Exp2Poly<kExact>::kC[k];
      const int32_t bits = n != n ? 0x3f800000 : (static_cast<int32_t>(n) + 127) << 23;
      float power;
      memcpy(&power, &bits, sizeof power);
      return p * power;
    });
  }

  // Units: what panels hold and the micro-kernel multiplies.
  static unit load_unit(const operand* p) { return load(p); }
  static void store_unit(operand* p, unit a) { store(p, a); }
  // What dot() takes for its first unit; no vector where the instruction itself spreads an element.
  static unit broadcast_unit(const operand* p) { return set1(*p); }
  static vec dot(vec acc, unit a, unit b) { return fma(a, b, acc); }
  // The first n <= kLanes * kPair elements at p as units, then zeros.
  template <class In>
  static unit units(const In* p, int n) {
    return each([&](int i) { return i < n ? to_float(p[i]) : 0.0f; });
  }
  // n <= kLanes units, each holding one element of every one of the kPair rows; a null row counts as zeros.
  template <class In>
  static unit column_units(const In* const rows[kPair], int n) {
    return units(rows[0], n);
  }
  static void transpose(unit (&r)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < i; ++j) {
        const float t = r[i].x[j];
        r[i].x[j] = r[j].x[i];
        r[j].x[i] = t;
      }
    }
  }
  // Words of 4 bytes as the packed layout has them (core/packed_layout.h): kLanes side by side, or 4 each at kLanes / 4
  // places, `at` elements from where these begin. unit_of: number `i` of the units that words of an element type make.
  struct words {
    uint32_t x[kLanes];
  };
  static words load_words(const void* p) {
    words w;
    memcpy(&w, p, sizeof w);
    return w;
  }
  template <class In>
  static words join_words(const In* const* quads, int64_t at) {
    return load_words(quads[0] + at);
  }
  template <class In>
  static unit unit_of(words w, int i) {
    return each([&](int lane) {
      In elements[sizeof(uint32_t) / sizeof(In)];
      memcpy(elements, &w.x[lane], sizeof elements);
      return to_float(elements[i]);
    });
  }
  // acc stays 0 as long as every operand seen is finite, and is NaN ever after one that is not.
  static vec watch_nonfinite(vec acc, unit a) { return fma(a, set1(0.0f), acc); }

  // Rounds to operands, and to the first n lanes of an output row.
  static void store_operands(operand* p, vec a) { store(p, a); }
  template <class Out>
  static void store_first(Out* p, vec a, int n) {
    for (int i = 0; i < n && i < kLanes; ++i) p[i] = from_float<Out>(a.x[i]);
  }

  // to[i] += the sum over 4 heads h of max(0, factor[h] * (q[h] . codes[i]) + offset[h]), for 2 keys of n codes, a multiple
  // of 16; rows of q are n apart. The dots are exact: n is at most 512.
  static void add_bounds(const int8_t* const codes[2], const int16_t* q, int64_t n, const float* factor,
                         const float* offset, float* to) {
    for (int k = 0; k < 2; ++k) {
      for (int h = 0; h < 4; ++h) {
        int32_t dot = 0;
        for (int64_t i = 0; i < n; ++i) dot += codes[k][i] * q[h * n + i];
        const float x = static_cast<float>(dot) * factor[h] + offset[h];
        to[k] += x > 0.0f ? x : 0.0f;
      }
    }
  }

  static operand negate(operand a) { return -a; }
  static void prefetch(const void*) {}
};

}  // namespace tessera

#endif  // TESSERA_ISA_SCALAR_H_
