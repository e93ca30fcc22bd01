// AVX-512 F, BW, VL and DQ: f32 panels and f32 FMA for every input type.
// 6 rows x 4 vectors = 24 accumulators and four panel vectors of 32 registers; the broadcasts are memory operands.
#ifndef TESSERA_ISA_AVX512_H_
#define TESSERA_ISA_AVX512_H_

#include "core/number.h"
#include "isa/avx512_intrinsics.h"
#include "isa/code_bounds.h"
#include "isa/exp2.h"

namespace tessera {

// Self only names the struct that the functions are compiled for: avx512bf16 shares the text, not the object code.
template <class Self>
struct Avx512 : CodeBounds<Self> {
  static constexpr int kLanes = 16;
  static constexpr int kRows = 6;
  static constexpr int kVecs = 4;
  static constexpr int kPair = 1;
  static constexpr int kTileRows = 256;

  using operand = float;
  using vec = __m512;
  using unit = __m512;

  static vec set1(float a) { return _mm512_set1_ps(a); }
  static vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, vec a) { _mm512_storeu_ps(p, a); }
  static vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
  static vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
  static vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
  static vec max(vec a, vec b) { return _mm512_max_ps(a, b); }
  static unsigned greater(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static unsigned not_at_most(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
  static int store_chosen(float* to, int32_t* ids, vec a, int32_t first_id, unsigned bits) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto mask = static_cast<__mmask16>(bits);
    const __m512i id = _mm512_add_epi32(_mm512_set1_epi32(first_id), lanes);
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(mask, a));
    _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(mask, id));
    return __builtin_popcount(bits);
  }
  static __mmask16 first_mask(int n) {
    return n >= kLanes ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1);
  }
  static vec keep_first(vec a, int n, float fill) { return _mm512_mask_mov_ps(set1(fill), first_mask(n), a); }
  static float reduce_add(vec a) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), upper_half(a));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float reduce_max(vec a) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), upper_half(a));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  template <bool kExact>
  static vec exp2(vec x) {
    using P = Exp2Poly<kExact>;
    x = _mm512_max_ps(set1(-127.0f), x);  // in this order a NaN passes
    const vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const vec f = _mm512_sub_ps(x, n);
    vec p = set1(P::kC[P::kDegree]);
    for (int k = P::kDegree - 1; k >= 0; --k) p = fma(p, f, set1(P::kC[k]));
    return _mm512_scalef_ps(p, n);
  }

  static unit load_unit(const operand* p) { return _mm512_loadu_ps(p); }
  static void store_unit(operand* p, unit a) { _mm512_storeu_ps(p, a); }
  static unit broadcast_unit(const operand* p) { return _mm512_set1_ps(*p); }
  static vec dot(vec acc, unit a, unit b) { return _mm512_fmadd_ps(a, b, acc); }
  static unit units(const float* p, int n) { return _mm512_maskz_loadu_ps(first_mask(n), p); }
  static unit units(const bf16* p, int n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_u16(p, n)), 16));
  }
  static unit units(const f16* p, int n) { return _mm512_cvtph_ps(load_u16(p, n)); }
  template <class In>
  static unit column_units(const In* const rows[kPair], int n) {
    return units(rows[0], n);
  }
  static void transpose(unit (&r)[kLanes]) {
    unit a[kLanes];
    unit b[kLanes];
    for (int i = 0; i < kLanes; i += 2) {
      a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < kLanes; i += 4) {
      b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    // b[4 i + j] holds column 4 l + j of rows 4 i .. 4 i + 3 in its 128-bit lane l: transpose the lanes.
    for (int j = 0; j < 4; ++j) {
      const unit lo = _mm512_shuffle_f32x4(b[j], b[j + 4], 0x88);        // lanes 0 2 of rows 0-3, 0 2 of rows 4-7
      const unit hi = _mm512_shuffle_f32x4(b[j], b[j + 4], 0xdd);        // lanes 1 3
      const unit lo2 = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0x88);  // the same of rows 8-15
      const unit hi2 = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0xdd);
      r[j] = _mm512_shuffle_f32x4(lo, lo2, 0x88);
      r[j + 8] = _mm512_shuffle_f32x4(lo, lo2, 0xdd);
      r[j + 4] = _mm512_shuffle_f32x4(hi, hi2, 0x88);
      r[j + 12] = _mm512_shuffle_f32x4(hi, hi2, 0xdd);
    }
  }
  using words = __m512i;
  static words load_words(const void* p) { return _mm512_loadu_si512(p); }
  template <class In>
  static words join_words(const In* const* quads, int64_t at) {
    const auto quad = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(quads[i] + at)); };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(quad(0)), quad(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(quad(2)), quad(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  template <class In>
  static unit unit_of(words w, int i) {
    return unit_of(w, i, static_cast<const In*>(nullptr));
  }
  static vec watch_nonfinite(vec acc, unit a) { return fma(a, _mm512_setzero_ps(), acc); }

  static void store_operands(operand* p, vec a) { _mm512_storeu_ps(p, a); }
  static void store_first(float* p, vec a, int n) { _mm512_mask_storeu_ps(p, first_mask(n), a); }
  static void store_first(f16* p, vec a, int n) {
    store_u16(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
  }
  static void store_first(bf16* p, vec a, int n) { store_u16(p, to_bf16(a), n); }
  static __m256i to_bf16(vec a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(up, is_nan, quiet), 16));
  }

  static operand negate(operand a) { return -a; }
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

 protected:
  static unit unit_of(words w, int, const float*) { return _mm512_castsi512_ps(w); }
  static unit unit_of(words w, int i, const bf16*) {
    const __m512i moved = _mm512_sll_epi32(w, _mm_cvtsi32_si128(i == 0 ? 16 : 0));
    return _mm512_castsi512_ps(_mm512_and_si512(moved, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000))));
  }
  static unit unit_of(words w, int i, const f16*) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srl_epi32(w, _mm_cvtsi32_si128(16 * i))));
  }
  static __m256 upper_half(vec a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)); }
  static __m256i load_u16(const void* p, int n) {
    if (n >= kLanes) return _mm256_loadu_si256(static_cast<const __m256i*>(p));
    uint16_t part[kLanes] = {};
    for (int i = 0; i < n; ++i) part[i] = static_cast<const uint16_t*>(p)[i];
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(part));
  }
  static void store_u16(void* p, __m256i a, int n) {
    if (n >= kLanes) {
      _mm256_storeu_si256(static_cast<__m256i*>(p), a);
      return;
    }
    uint16_t part[kLanes];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(part), a);
    for (int i = 0; i < n; ++i) static_cast<uint16_t*>(p)[i] = part[i];
  }
};

struct avx512 : Avx512<avx512> {};

}  // namespace tessera

#endif  // TESSERA_ISA_AVX512_H_
