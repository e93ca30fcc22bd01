// AVX-512 with BF16 dot products, for bf16 inputs: a unit is a pair of bf16, one instruction multiplies and adds 16 pairs
// into 16 f32 lanes, twice the rate of f32 FMA. Panels hold the input's own bits (no conversion), probabilities are
// rounded to bf16.
#ifndef TESSERA_ISA_AVX512BF16_H_
#define TESSERA_ISA_AVX512BF16_H_

#include "isa/avx512.h"

namespace tessera {

struct avx512bf16 : Avx512<avx512bf16> {
  using f32_unit = Avx512<avx512bf16>::unit;
  static constexpr int kPair = 2;

  using operand = bf16;
  using unit = __m512i;

  static unit load_unit(const operand* p) { return _mm512_loadu_si512(p); }
  static void store_unit(operand* p, unit a) { _mm512_storeu_si512(p, a); }
  static unit broadcast_unit(const operand* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_broadcastd_epi32(_mm_cvtsi32_si128(pair));  // Clang 16 crashes on _mm512_set1_epi32 for a dot
  }
#if defined(TESSERA_EMULATE_AVX512)
  static vec dot(vec acc, unit a, unit b) {
    const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
    acc = fma(_mm512_castsi512_ps(_mm512_and_si512(a, high)), _mm512_castsi512_ps(_mm512_and_si512(b, high)), acc);
    return fma(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), acc);
  }
#else
  static vec dot(vec acc, unit a, unit b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
#endif
  static unit units(const bf16* p, int n) {
    if (n >= kLanes * kPair) return _mm512_loadu_si512(p);
    bf16 part[kLanes * kPair] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return _mm512_loadu_si512(part);
  }
  static unit column_units(const bf16* const rows[kPair], int n) {
    const unit low = half(rows[0], n);
    const unit high = half(rows[1], n);
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
  using Avx512<avx512bf16>::transpose;
  static void transpose(unit (&r)[kLanes]) {
    f32_unit f[kLanes];
    for (int i = 0; i < kLanes; ++i) f[i] = _mm512_castsi512_ps(r[i]);
    Avx512<avx512bf16>::transpose(f);
    for (int i = 0; i < kLanes; ++i) r[i] = _mm512_castps_si512(f[i]);
  }
  // A word is a pair of bf16, which is a unit.
  template <class In>
  static unit unit_of(words w, int) {
    return w;
  }
  static operand negate(operand a) { return {static_cast<uint16_t>(a.bits ^ 0x8000)}; }
  static vec watch_nonfinite(vec acc, unit a) {
    const __m512i high = _mm512_and_si512(a, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000)));
    acc = fma(_mm512_castsi512_ps(high), _mm512_setzero_ps(), acc);
    return fma(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), _mm512_setzero_ps(), acc);
  }
#if defined(TESSERA_EMULATE_AVX512)
  static __m256i round_to_bf16(vec a) { return to_bf16(a); }
#else
  static __m256i round_to_bf16(vec a) { return (__m256i)_mm512_cvtneps_pbh(a); }
#endif
  static void store_operands(operand* p, vec a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_to_bf16(a));
  }

 private:
  static unit half(const bf16* p, int n) {
    return p == nullptr ? _mm512_setzero_si512() : _mm512_cvtepu16_epi32(load_u16(p, n));
  }
};

}  // namespace tessera

#endif  // TESSERA_ISA_AVX512BF16_H_
