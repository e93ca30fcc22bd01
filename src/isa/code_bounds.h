// For the AVX2 and AVX-512 structs, each with its own object code; 256 bits are as wide as a key's dots are useful for.
#ifndef TESSERA_ISA_CODE_BOUNDS_H_
#define TESSERA_ISA_CODE_BOUNDS_H_

#include <stdint.h>

namespace tessera {

template <class Self>
struct CodeBounds {
  // As scalar::add_bounds. Two keys share the loads of q.
  static void add_bounds(const int8_t* const codes[2], const int16_t* q, int64_t n, const float* factor,
                         const float* offset, float* to) {
    __m256i acc[2][4];
#pragma GCC unroll 8
    for (int h = 0; h < 4; ++h) acc[0][h] = acc[1][h] = _mm256_setzero_si256();
    const int8_t* const c0 = codes[0];
    const int8_t* const c1 = codes[1];
    const int16_t *q0 = q, *q1 = q + n, *q2 = q1 + n, *q3 = q2 + n;
#pragma GCC unroll 4
    for (int64_t i = 0; i < n; i += 16) {
      const __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(c0 + i)));
      const __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(c1 + i)));
      const int16_t* const rows[4] = {q0, q1, q2, q3};
#pragma GCC unroll 8
      for (int h = 0; h < 4; ++h) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[h] + i));
        acc[0][h] = _mm256_add_epi32(acc[0][h], _mm256_madd_epi16(a, x));
        acc[1][h] = _mm256_add_epi32(acc[1][h], _mm256_madd_epi16(b, x));
      }
    }
    __m256i p[2];
#pragma GCC unroll 8
    for (int i = 0; i < 2; ++i) {
      p[i] = _mm256_hadd_epi32(_mm256_hadd_epi32(acc[i][0], acc[i][1]), _mm256_hadd_epi32(acc[i][2], acc[i][3]));
    }
    const __m256i dots =
        _mm256_add_epi32(_mm256_permute2x128_si256(p[0], p[1], 0x20), _mm256_permute2x128_si256(p[0], p[1], 0x31));
    const __m256 f = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(factor));
    const __m256 o = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(offset));
    __m256 x = _mm256_max_ps(_mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), f, o), _mm256_setzero_ps());
    x = _mm256_hadd_ps(x, x);
    x = _mm256_hadd_ps(x, x);
    to[0] += _mm_cvtss_f32(_mm256_castps256_ps128(x));
    to[1] += _mm_cvtss_f32(_mm256_extractf128_ps(x, 1));
  }
};

}  // namespace tessera

#endif  // TESSERA_ISA_CODE_BOUNDS_H_
