// AVX2 with FMA and F16C. Every input type is widened to f32 panels: on the cores that stop at AVX2, shifting bf16 up to
// f32 once while packing is cheaper than in every use, and f32 FMA is all the arithmetic there is.
// 6 rows x 2 vectors = 12 accumulators, two panel vectors and one broadcast: 15 of 16 registers; 8 loads per 12 FMAs.
#ifndef TESSERA_ISA_AVX2_H_
#define TESSERA_ISA_AVX2_H_

#include <immintrin.h>
#include <stdint.h>

#include "core/number.h"
#include "isa/code_bounds.h"
#include "isa/exp2.h"

namespace tessera {

struct avx2 : CodeBounds<avx2> {
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6;
  static constexpr int kVecs = 2;
  static constexpr int kPair = 1;
  static constexpr int kTileRows = 192;

  using operand = float;
  using vec = __m256;
  using unit = __m256;

  static vec set1(float a) { return _mm256_set1_ps(a); }
  static vec load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, vec a) { _mm256_storeu_ps(p, a); }
  static vec add(vec a, vec b) { return _mm256_add_ps(a, b); }
  static vec mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
  static vec fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
  static vec max(vec a, vec b) { return _mm256_max_ps(a, b); }
  static unsigned greater(vec a, vec b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
  }
  static unsigned not_at_most(vec a, vec b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ)));
  }
  static int store_chosen(float* to, int32_t* ids, vec a, int32_t first_id, unsigned bits) {
    const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kOrder.lanes[bits])));
    _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(a, order));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(ids), _mm256_add_epi32(_mm256_set1_epi32(first_id), order));
    return __builtin_popcount(bits);
  }
  static __m256i first_mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static vec keep_first(vec a, int n, float fill) {
    return _mm256_blendv_ps(_mm256_set1_ps(fill), a, _mm256_castsi256_ps(first_mask(n)));
  }
  static float reduce_add(vec a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float reduce_max(vec a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  template <bool kExact>
  static vec exp2(vec x) {
    using P = Exp2Poly<kExact>;
    x = _mm256_max_ps(_mm256_set1_ps(-127.0f), x);  // in this order a NaN passes
    const vec n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const vec f = _mm256_sub_ps(x, n);
    vec p = set1(P::kC[P::kDegree]);
    for (int k = P::kDegree - 1; k >= 0; --k) p = fma(p, f, set1(P::kC[k]));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
  }

  static unit load_unit(const operand* p) { return _mm256_loadu_ps(p); }
  static void store_unit(operand* p, unit a) { _mm256_storeu_ps(p, a); }
  static unit broadcast_unit(const operand* p) { return _mm256_broadcast_ss(p); }
  static vec dot(vec acc, unit a, unit b) { return _mm256_fmadd_ps(a, b, acc); }
  static unit units(const float* p, int n) {
    return n >= kLanes ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_mask(n));
  }
  static unit units(const bf16* p, int n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_u16(p, n)), 16));
  }
  static unit units(const f16* p, int n) { return _mm256_cvtph_ps(load_u16(p, n)); }
  template <class In>
  static unit column_units(const In* const rows[kPair], int n) {
    return units(rows[0], n);
  }
  static void transpose(unit (&r)[kLanes]) {
    unit a[kLanes];
    unit b[kLanes];
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
  }
  using words = __m256i;
  static words load_words(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  template <class In>
  static words join_words(const In* const* quads, int64_t at) {
    return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(quads[1] + at),
                               reinterpret_cast<const __m128i*>(quads[0] + at));
  }
  // A byte shuffle whose pattern is in memory takes no register of the loops around.
  template <class In>
  static unit unit_of(words w, int i) {
    return unit_of(w, i, static_cast<const In*>(nullptr));
  }
  static vec watch_nonfinite(vec acc, unit a) { return fma(a, _mm256_setzero_ps(), acc); }

  static void store_operands(operand* p, vec a) { _mm256_storeu_ps(p, a); }
  static void store_first(float* p, vec a, int n) {
    if (n >= kLanes) {
      _mm256_storeu_ps(p, a);
    } else {
      _mm256_maskstore_ps(p, first_mask(n), a);
    }
  }
  static void store_first(f16* p, vec a, int n) {
    store_u16(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
  }
  static void store_first(bf16* p, vec a, int n) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xd8);
    store_u16(p, _mm256_castsi256_si128(packed), n);
  }

  static operand negate(operand a) { return -a; }
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

 private:
  // For each set of lanes, their numbers in increasing order, a byte each.
  struct Order {
    uint64_t lanes[256] = {};
    constexpr Order() {
      for (unsigned bits = 0; bits < 256; ++bits) {
        int n = 0;
        for (unsigned lane = 0; lane < 8; ++lane) {
          if ((bits >> lane & 1) != 0) lanes[bits] |= uint64_t{lane} << (8 * n++);
        }
      }
    }
  };
  static const Order kOrder;

  // For either element of a lane's four words, which bytes go where: to the upper half of its word, above zeros (`widen`),
  // or to the first eight bytes.
  struct Pick {
    alignas(32) uint8_t bytes[2][32] = {};
    constexpr explicit Pick(bool widen) {
      for (int i = 0; i < 64; ++i) {
        const int byte = i % 16, element = i / 32;
        const int word = widen ? byte / 4 : byte / 2;
        const bool zero = widen ? byte % 4 < 2 : byte >= 8;
        bytes[element][i % 32] = static_cast<uint8_t>(zero ? 0x80 : word * 4 + element * 2 + byte % 2);
      }
    }
    __m256i operator()(words w, int element) const {
      return _mm256_shuffle_epi8(w, *reinterpret_cast<const __m256i*>(bytes[element]));
    }
  };
  static const Pick kWiden, kTogether;

  static unit unit_of(words w, int, const float*) { return _mm256_castsi256_ps(w); }
  static unit unit_of(words w, int i, const bf16*) { return _mm256_castsi256_ps(kWiden(w, i)); }
  static unit unit_of(words w, int i, const f16*) {
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(kTogether(w, i), 0x08)));
  }

  static __m128i load_u16(const void* p, int n) {
    if (n >= kLanes) return _mm_loadu_si128(static_cast<const __m128i*>(p));
    uint16_t part[kLanes] = {};
    for (int i = 0; i < n; ++i) part[i] = static_cast<const uint16_t*>(p)[i];
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(part));
  }
  static void store_u16(void* p, __m128i a, int n) {
    if (n >= kLanes) {
      _mm_storeu_si128(static_cast<__m128i*>(p), a);
      return;
    }
    uint16_t part[kLanes];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(part), a);
    for (int i = 0; i < n; ++i) static_cast<uint16_t*>(p)[i] = part[i];
  }
};

inline constexpr avx2::Order avx2::kOrder;
inline constexpr avx2::Pick avx2::kWiden(true);
inline constexpr avx2::Pick avx2::kTogether(false);

}  // namespace tessera

#endif  // TESSERA_ISA_AVX2_H_
