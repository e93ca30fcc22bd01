// Advanced SIMD of 64-bit Arm, which every such CPU has: f32 panels and f32 FMA for every input type.
// 6 rows x 4 vectors = 24 accumulators and four panel vectors of 32 registers; an element of a row stays a scalar, which an
// FMA takes as it is: to spread it over a vector would keep a multiplier busy.
#ifndef TESSERA_ISA_NEON_H_
#define TESSERA_ISA_NEON_H_

#include <arm_neon.h>
#include <stdint.h>

#include "core/number.h"
#include "isa/exp2.h"

namespace tessera {

// Self only names the struct that the functions are compiled for: neonbf16 shares the text, not the object code.
template <class Self>
struct Neon {
  static constexpr int kLanes = 4;
  static constexpr int kRows = 6;
  static constexpr int kVecs = 4;
  static constexpr int kPair = 1;
  static constexpr int kTileRows = 192;

  using operand = float;
  using vec = float32x4_t;
  using unit = float32x4_t;

  static vec set1(float a) { return vdupq_n_f32(a); }
  static vec load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, vec a) { vst1q_f32(p, a); }
  static vec add(vec a, vec b) { return vaddq_f32(a, b); }
  static vec mul(vec a, vec b) { return vmulq_f32(a, b); }
  static vec fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
  // The maximum instructions give NaN for either NaN, or for none.
  static vec max(vec a, vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static unsigned greater(vec a, vec b) { return bits_of(vcgtq_f32(a, b)); }
  static unsigned not_at_most(vec a, vec b) { return bits_of(vmvnq_u32(vcleq_f32(a, b))); }
  static int store_chosen(float* to, int32_t* ids, vec a, int32_t first_id, unsigned bits) {
    const uint8x16_t order = vld1q_u8(kOrder.bytes[bits]);
    const int32x4_t id = vaddq_s32(vdupq_n_s32(first_id), vreinterpretq_s32_u32(lanes()));
    vst1q_f32(to, vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(a), order)));
    vst1q_s32(ids, vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(id), order)));
    return __builtin_popcount(bits);
  }
  static vec keep_first(vec a, int n, float fill) { return vbslq_f32(first_mask(n), a, set1(fill)); }
  static float reduce_add(vec a) { return vaddvq_f32(a); }
  static float reduce_max(vec a) { return vmaxvq_f32(a); }
  template <bool kExact>
  static vec exp2(vec x) {
    using P = Exp2Poly<kExact>;
    x = max(set1(-127.0f), x);  // in this order a NaN passes
    const vec n = vrndnq_f32(x);
    const vec f = vsubq_f32(x, n);
    vec p = set1(P::kC[P::kDegree]);
    for (int k = P::kDegree - 1; k >= 0; --k) p = fma(p, f, set1(P::kC[k]));
    const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    return vmulq_f32(p, vreinterpretq_f32_s32(power));
  }

  static unit load_unit(const operand* p) { return vld1q_f32(p); }
  static void store_unit(operand* p, unit a) { vst1q_f32(p, a); }
  static float broadcast_unit(const operand* p) { return *p; }
  static vec dot(vec acc, unit a, unit b) { return vfmaq_f32(acc, a, b); }
  static vec dot(vec acc, float a, unit b) { return vfmaq_n_f32(acc, b, a); }
  static unit units(const float* p, int n) {
    if (n >= kLanes) return vld1q_f32(p);
    float part[kLanes] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return vld1q_f32(part);
  }
  static unit units(const bf16* p, int n) { return vreinterpretq_f32_u32(vshll_n_u16(load_u16(p, n), 16)); }
  static unit units(const f16* p, int n) { return vcvt_f32_f16(vreinterpret_f16_u16(load_u16(p, n))); }
  template <class In>
  static unit column_units(const In* const rows[kPair], int n) {
    return units(rows[0], n);
  }
  static void transpose(unit (&r)[kLanes]) {
    const float32x4_t a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]);
    const float32x4_t c = vtrn1q_f32(r[2], r[3]), d = vtrn2q_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(c));
    r[1] = vcombine_f32(vget_low_f32(b), vget_low_f32(d));
    r[2] = vcombine_f32(vget_high_f32(a), vget_high_f32(c));
    r[3] = vcombine_f32(vget_high_f32(b), vget_high_f32(d));
  }
  using words = uint32x4_t;
  static words load_words(const void* p) { return vreinterpretq_u32_u8(vld1q_u8(static_cast<const uint8_t*>(p))); }
  template <class In>
  static words join_words(const In* const* quads, int64_t at) {
    return load_words(quads[0] + at);
  }
  template <class In>
  static unit unit_of(words w, int i) {
    return unit_of(w, i, static_cast<const In*>(nullptr));
  }
  static vec watch_nonfinite(vec acc, unit a) { return fma(a, set1(0.0f), acc); }

  static void store_operands(operand* p, vec a) { vst1q_f32(p, a); }
  static void store_first(float* p, vec a, int n) {
    if (n >= kLanes) {
      vst1q_f32(p, a);
      return;
    }
    float part[kLanes];
    vst1q_f32(part, a);
    for (int i = 0; i < n; ++i) p[i] = part[i];
  }
  static void store_first(f16* p, vec a, int n) { store_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)), n); }
  static void store_first(bf16* p, vec a, int n) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    const uint32x4_t is_number = vceqq_f32(a, a);
    store_u16(p, vshrn_n_u32(vbslq_u32(is_number, up, quiet), 16), n);
  }

  // As scalar::add_bounds. Two keys share the loads of q.
  static void add_bounds(const int8_t* const codes[2], const int16_t* q, int64_t n, const float* factor,
                         const float* offset, float* to) {
    int32x4_t acc[2][4];
    for (int h = 0; h < 4; ++h) acc[0][h] = acc[1][h] = vdupq_n_s32(0);
    for (int64_t i = 0; i < n; i += 8) {
      const int16x8_t a = vmovl_s8(vld1_s8(codes[0] + i));
      const int16x8_t b = vmovl_s8(vld1_s8(codes[1] + i));
#pragma GCC unroll 4
      for (int h = 0; h < 4; ++h) {
        const int16x8_t x = vld1q_s16(q + h * n + i);
        acc[0][h] = vmlal_high_s16(vmlal_s16(acc[0][h], vget_low_s16(a), vget_low_s16(x)), a, x);
        acc[1][h] = vmlal_high_s16(vmlal_s16(acc[1][h], vget_low_s16(b), vget_low_s16(x)), b, x);
      }
    }
    for (int k = 0; k < 2; ++k) {
      const int32x4_t* const s = acc[k];
      const vec dots = vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])));
      to[k] += vaddvq_f32(max(fma(dots, load(factor), load(offset)), set1(0.0f)));
    }
  }

  static operand negate(operand a) { return -a; }
  static void prefetch(const void* p) { __builtin_prefetch(p); }

 protected:
  // For each set of lanes, the bytes of those in increasing order.
  struct Order {
    uint8_t bytes[16][16] = {};
    constexpr Order() {
      for (unsigned bits = 0; bits < 16; ++bits) {
        int n = 0;
        for (int byte = 0; byte < 16; ++byte) {
          if ((bits >> (byte / 4) & 1) != 0) bytes[bits][n++] = static_cast<uint8_t>(byte);
        }
      }
    }
  };
  static constexpr Order kOrder{};

  static uint32x4_t lanes() {
    static constexpr uint32_t kLane[kLanes] = {0, 1, 2, 3};
    return vld1q_u32(kLane);
  }
  static unsigned bits_of(uint32x4_t mask) {
    return vaddvq_u32(vandq_u32(mask, vshlq_u32(vdupq_n_u32(1), vreinterpretq_s32_u32(lanes()))));
  }
  static uint32x4_t first_mask(int n) { return vcltq_s32(vreinterpretq_s32_u32(lanes()), vdupq_n_s32(n)); }

  static unit unit_of(words w, int, const float*) { return vreinterpretq_f32_u32(w); }
  static unit unit_of(words w, int i, const bf16*) {
    const uint32x4_t moved = vshlq_u32(w, vdupq_n_s32(i == 0 ? 16 : 0));
    return vreinterpretq_f32_u32(vandq_u32(moved, vdupq_n_u32(0xffff0000)));
  }
  static unit unit_of(words w, int i, const f16*) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vshlq_u32(w, vdupq_n_s32(-16 * i)))));
  }
  static uint16x4_t load_u16(const void* p, int n) {
    const auto* const from = static_cast<const uint16_t*>(p);
    if (n >= kLanes) return vld1_u16(from);
    uint16_t part[kLanes] = {};
    for (int i = 0; i < n; ++i) part[i] = from[i];
    return vld1_u16(part);
  }
  static void store_u16(void* p, uint16x4_t a, int n) {
    auto* const to = static_cast<uint16_t*>(p);
    if (n >= kLanes) {
      vst1_u16(to, a);
      return;
    }
    uint16_t part[kLanes];
    vst1_u16(part, a);
    for (int i = 0; i < n; ++i) to[i] = part[i];
  }
};

struct neon : Neon<neon> {};

}  // namespace tessera

#endif  // TESSERA_ISA_NEON_H_
