// Which keys of a tile may be among the best of a row, from copies of 8 bits: the others need not be scored, nor read.
//
// qsa_screen_keys makes of a key k its scale s = max|k| / 127 and codes c = round(k / s): |k[i] - s c[i]| <= s (1/2 + 2^-15).
// Here a head's q becomes t = max|q| / 32767 and Q = round(q / t), |q[i] - t Q[i]| <= 0.51 t. Then
//   q . k <= s (t Q.c + 0.51 t * 128 D + |q|_1 (1/2 + 2^-15))
// where Q.c is exact in int32: 32767 * 128 * 512 < 2^31. What the kernel computes for q . k, by whatever sums of f32, is
// within 128 s |q|_1 (2 D + 8) 2^-24 of it; the f32 of |q|_1, whose sum errs by D 2^-24, and of what follows, by three steps
// of numbers below 128 s |q|_1, take less than 128 s |q|_1 * 8 * 2^-24. All this is
//   s (t Q.c + e),  e = 65.5 t D + |q|_1 (1/2 + 2^-15 + (2 D + 16) 2^-17)
// and a score is at most scale * s * sum over heads of w max(0, t Q.c + e). Sums of positive terms, here and in the
// kernel, err by less than 2^-11 of the result; a factor of 1 + 2^-10 makes up for it. Nothing overflows
// or is lost among subnormals, nor to units that flush them: s in [2^-40, 2^40], max|q|, w and `scale` in [2^-20, 2^20] or
// 0, up to 1024 heads; rows with other numbers are not screened, and keys with other scales always pass.
//
// A key that is not above the bar is one that Best::add would not take: nothing changes but the time.
//
// Cost, AVX2 on Zen 3, 4 heads, D = 128: 128 bytes and 17 ns a key, where its score takes 256 bytes (bf16) and 30 ns.
#ifndef TESSERA_OPS_QSA_SCORE_SCREEN_H_
#define TESSERA_OPS_QSA_SCORE_SCREEN_H_

#include <math.h>
#include <stdint.h>

#include "ops/qsa_score/plan.h"

namespace tessera::qsa_score {

// What a bound for a row must be above, from the bar of its list and those of its other chunks, which tell each other positive
// ones. As many keys as are kept reach such a bar, so keys below it are out; equal ones of a lower id are not, hence the
// number before it. Late news costs time and changes nothing. NaN: there is no bar yet.
static inline float shared_bar(float own, int32_t* shared) {
  const int32_t bits = own > 0 ? static_cast<int32_t>(float_bits(own)) : 0;
  int32_t others = __atomic_load_n(shared, __ATOMIC_RELAXED);
  while (bits > others &&
         !__atomic_compare_exchange_n(shared, &others, bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return others > bits ? bits_float(static_cast<uint32_t>(others - 1)) : own;
}

template <class Isa, class In>
class Screen {
 public:
  Screen(const Problem& problem, char* memory) : p_(problem), memory_(memory), heads_(screen_heads(problem)) {}

  // Prepares row t of the tile, whose weights are `weights` if not null. Returns whether the row can be screened.
  bool load_row(int64_t t, const In* q, const float* weights) const {
    int16_t* const to = rows(t);
    float* const factor = factors(t);
    float* const offset = factor + heads_;
    bool good = in_range(p_.scale);
    for (int64_t h = 0; h < heads_; ++h) {
      factor[h] = offset[h] = 0.0f;
      if (h >= p_.heads) {
        for (int64_t i = 0; i < p_.dim; ++i) to[h * p_.dim + i] = 0;
        continue;
      }
      const In* const from = q + h * p_.q_head;
      float most = 0.0f, sum = 0.0f;
      bool finite = true;
      for (int64_t i = 0; i < p_.dim; ++i) {
        const float x = fabsf(to_float(from[i]));
        finite = finite && x <= kMost;
        most = x > most ? x : most;
        sum += x;
      }
      const float w = weights == nullptr ? 1.0f : weights[h];
      good = good && finite && (most == 0 || in_range(most)) && (w == 0 || in_range(w));
      if (!good) return false;
      const float inverse = most == 0 ? 0.0f : 32767.0f / most;
      for (int64_t i = 0; i < p_.dim; ++i)
        to[h * p_.dim + i] = static_cast<int16_t>(rintf(to_float(from[i]) * inverse));
      const float step = most / 32767.0f;
      const auto dim = static_cast<float>(p_.dim);
      const float unit = w * p_.scale * (1.0f + 0x1p-10f);
      factor[h] = unit * step;
      offset[h] = unit * (65.5f * step * dim + sum * (0.5f + 0x1p-15f + (2.0f * dim + 16.0f) * 0x1p-17f));
    }
    return good;
  }

  // use(key, id) for those of n keys of the request, from `begin` on, whose bound for one of the rows is above its bar.
  template <class Use>
  void pick(int64_t request, int64_t begin, int n, int64_t rows, const float* bars, const Use& use) const {
    const int8_t* codes[kKeyTile + 1];
    const float* scale[kKeyTile];
    const In* key[kKeyTile];
    float scales[kKeyTile + Isa::kLanes];
    uint8_t place[kKeyTile];
    const int count = locate_keys(p_.codes, p_.pages, Sequence{}, request, 0, begin, n, codes, place);
    if (count == 0) return;
    locate_keys(p_.scales, p_.pages, Sequence{}, request, 0, begin, n, scale, place);
    for (int i = 0; i < count; ++i) scales[i] = *scale[i];
    Bits bits = {};
    for (int64_t t = 0; t < rows; ++t) pass(t, codes, scales, count, bars[t], &bits);
    if ((bits.words[0] | bits.words[1]) == 0) return;
    locate_keys(p_.k, p_.pages, Sequence{}, request, 0, begin, n, key, place);
    for (int w = 0; w < kKeyTile / 64; ++w) {
      for (uint64_t left = bits.words[w]; left != 0; left &= left - 1) {
        const int i = 64 * w + __builtin_ctzll(left);
        for (int64_t d = 0; d < p_.dim; d += 64 / static_cast<int64_t>(sizeof(In))) Isa::prefetch(key[i] + d);
        use(key[i], begin + place[i]);
      }
    }
  }

 private:
  // Of the keys of a tile, a bit each.
  struct Bits {
    uint64_t words[kKeyTile / 64];
  };

  // Adds the n keys whose bounds for row t are above the bar.
  void pass(int64_t t, const int8_t* (&codes)[kKeyTile + 1], const float* scales, int n, float bar, Bits* bits) const {
    alignas(64) float sums[kKeyTile + 16];
    for (float& sum : sums) sum = 0.0f;
    codes[n] = codes[n - 1];
    for (int64_t h = 0; h < heads_; h += 4) {
      const int16_t* const q = rows(t) + h * p_.dim;
      const float* const factor = factors(t) + h;
      for (int i = 0; i < n; i += 2) Isa::add_bounds(codes + i, q, p_.dim, factor, factor + heads_, sums + i);
    }
    const typename Isa::vec least = Isa::set1(bar);
    for (int i = 0; i < n; i += Isa::kLanes) {
      unsigned above = Isa::not_at_most(Isa::mul(Isa::load(sums + i), Isa::load(scales + i)), least);
      if (n - i < Isa::kLanes) above &= (1u << (n - i)) - 1;
      bits->words[i / 64] |= static_cast<uint64_t>(above) << (i % 64);
    }
  }

  static constexpr float kLeast = 0x1p-20f, kMost = 0x1p20f;
  static bool in_range(float x) { return x >= kLeast && x <= kMost; }

  int16_t* rows(int64_t t) const { return reinterpret_cast<int16_t*>(memory_ + t * screen_row_bytes(p_)); }
  float* factors(int64_t t) const { return reinterpret_cast<float*>(rows(t) + heads_ * p_.dim); }

  const Problem& p_;
  char* memory_;
  int64_t heads_;
};

}  // namespace tessera::qsa_score

#endif  // TESSERA_OPS_QSA_SCORE_SCREEN_H_
