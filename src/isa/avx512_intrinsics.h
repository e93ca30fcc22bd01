// The AVX-512 intrinsics: the compiler's, or, in the test build that runs these files on machines without AVX-512,
// SIMDe's portable versions of the same names.
#ifndef TESSERA_ISA_AVX512_INTRINSICS_H_
#define TESSERA_ISA_AVX512_INTRINSICS_H_

#include <stdint.h>

#if defined(TESSERA_EMULATE_AVX512)
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

// What SIMDe 0.7.4 lacks.
namespace tessera::emulated {
static inline __m512 shuffle_f32x4(__m512 a, __m512 b, int imm) {
  float x[16], y[16], r[16];
  _mm512_storeu_ps(x, a);
  _mm512_storeu_ps(y, b);
  for (int i = 0; i < 16; ++i) r[i] = (i < 8 ? x : y)[(imm >> (i / 4 * 2) & 3) * 4 + i % 4];
  return _mm512_loadu_ps(r);
}
static inline __m512 maskz_loadu_ps(__mmask16 mask, const void* p) {
  float r[16] = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) __builtin_memcpy(r + i, static_cast<const float*>(p) + i, sizeof(float));
  }
  return _mm512_loadu_ps(r);
}
static inline void mask_storeu_ps(void* p, __mmask16 mask, __m512 a) {
  float x[16];
  _mm512_storeu_ps(x, a);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) __builtin_memcpy(static_cast<float*>(p) + i, x + i, sizeof(float));
  }
}
static inline __m256i cvtepi32_epi16(__m512i a) {
  uint32_t x[16];
  uint16_t r[16];
  _mm512_storeu_si512(x, a);
  for (int i = 0; i < 16; ++i) r[i] = static_cast<uint16_t>(x[i]);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(r));
}
static inline __m512i cvtepu16_epi32(__m256i a) {
  uint16_t x[16];
  uint32_t r[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), a);
  for (int i = 0; i < 16; ++i) r[i] = x[i];
  return _mm512_loadu_si512(r);
}
static inline __m512 cvtph_ps(__m256i a) {
  float r[16];
  _mm256_storeu_ps(r, _mm256_cvtph_ps(_mm256_castsi256_si128(a)));
  _mm256_storeu_ps(r + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
  return _mm512_loadu_ps(r);
}
static inline __m256i cvtps_ph(__m512 a, int) {
  float x[16];
  _mm512_storeu_ps(x, a);
  const __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(x), 0);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm256_cvtps_ph(_mm256_loadu_ps(x + 8), 0), 1);
}
}  // namespace tessera::emulated
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps ::tessera::emulated::cvtph_ps
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph ::tessera::emulated::cvtps_ph
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 ::tessera::emulated::cvtepu16_epi32
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16 ::tessera::emulated::cvtepi32_epi16
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4 ::tessera::emulated::shuffle_f32x4
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps ::tessera::emulated::maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps ::tessera::emulated::mask_storeu_ps
#else
#include <immintrin.h>
#endif

#endif  // TESSERA_ISA_AVX512_INTRINSICS_H_
