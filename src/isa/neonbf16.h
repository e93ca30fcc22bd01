// Advanced SIMD with BF16 dot products, for bf16 inputs: a unit is a pair of bf16, one instruction multiplies and adds 4
// pairs into 4 f32 lanes, twice the rate of f32 FMA. Panels hold the input's own bits (no conversion), probabilities are
// rounded to bf16. The dots round to odd, an error of up to a unit in the last place, and take subnormals for zeros.
//
// GCC 12 turns a vector of bf16 ones that it knows at compile time into one of f16 ones: constants come from memory.
#ifndef TESSERA_ISA_NEONBF16_H_
#define TESSERA_ISA_NEONBF16_H_

#include "isa/neon.h"

namespace tessera {

struct neonbf16 : Neon<neonbf16> {
  static constexpr int kPair = 2;
  static constexpr int kTileRows = 256;

  using operand = bf16;
  using unit = uint16x8_t;
  using f32_unit = Neon<neonbf16>::unit;

  static unit load_unit(const operand* p) { return load_bits(p); }
  static void store_unit(operand* p, unit a) { vst1q_u16(&p->bits, a); }
  static bfloat16x4_t broadcast_unit(const operand* p) {
    uint32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return vcreate_bf16(pair);  // the lower half alone is used: to spread it would take a multiplier's turn
  }
  static vec dot(vec acc, unit a, unit b) {
    return vbfdotq_f32(acc, vreinterpretq_bf16_u16(a), vreinterpretq_bf16_u16(b));
  }
  static vec dot(vec acc, bfloat16x4_t a, unit b) { return vbfdotq_lane_f32(acc, vreinterpretq_bf16_u16(b), a, 0); }
  static unit units(const bf16* p, int n) {
    if (n >= kLanes * kPair) return load_bits(p);
    bf16 part[kLanes * kPair] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return load_bits(part);
  }
  static unit column_units(const bf16* const rows[kPair], int n) {
    const uint16x4_t low = half(rows[0], n), high = half(rows[1], n);
    return vcombine_u16(vzip1_u16(low, high), vzip2_u16(low, high));
  }
  using Neon<neonbf16>::transpose;
  static void transpose(unit (&r)[kLanes]) {
    f32_unit f[kLanes];
    for (int i = 0; i < kLanes; ++i) f[i] = vreinterpretq_f32_u16(r[i]);
    Neon<neonbf16>::transpose(f);
    for (int i = 0; i < kLanes; ++i) r[i] = vreinterpretq_u16_f32(f[i]);
  }
  // A word is a pair of bf16, which is a unit.
  template <class In>
  static unit unit_of(words w, int) {
    return vreinterpretq_u16_u32(w);
  }
  static operand negate(operand a) { return {static_cast<uint16_t>(a.bits ^ 0x8000)}; }
  static vec watch_nonfinite(vec acc, unit a) {
    acc = fma(vreinterpretq_f32_u32(vshll_high_n_u16(a, 16)), set1(0.0f), acc);
    return fma(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(a), 16)), set1(0.0f), acc);
  }
  static void store_operands(operand* p, vec a) { vst1_u16(&p->bits, vreinterpret_u16_bf16(vcvt_bf16_f32(a))); }

 private:
  static unit load_bits(const bf16* p) { return vld1q_u16(&p->bits); }
  static uint16x4_t half(const bf16* p, int n) { return p == nullptr ? vdup_n_u16(0) : load_u16(p, n); }
};

}  // namespace tessera

#endif  // TESSERA_ISA_NEONBF16_H_
