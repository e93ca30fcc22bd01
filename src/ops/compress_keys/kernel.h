// The key of a block: x = mean of its bs raw rows, rounded to the cache's type; x *= 1/sqrt(mean(x^2) + eps) * (1 + w); then
// each pair (x[i], x[i + half]) is turned by position * theta^(-i/half).
//
// One block at a time; its features stay in L1 as f32. The mean reads up to eight vectors of a row at a time into
// registers, rows in the order of tokens wherever they lie, so that a block has the same bits however its tokens came. An
// angle is counted in turns in f64: what is left of it after the whole turns is exact up to positions of 2^20 to 1e-10, and
// goes into polynomials of f32 in an eighth of a turn.
// Bytes: (bs + 1) D elements (1.25 KB at bs 4, D 128, bf16). FLOPs: some 20 D for mean, norm and rounding, 40 half for the
// angles. A block of bf16 takes 0.14 us with AVX2 on Zen 3, from cache and from memory, of f16 or f32 0.10 us; angles are
// 0.03 of it, roundings of bf16 0.05. That is 9 GB/s a core: two of them come to 0.8 of what the machine streams.
#ifndef TESSERA_OPS_COMPRESS_KEYS_KERNEL_H_
#define TESSERA_OPS_COMPRESS_KEYS_KERNEL_H_

#include <math.h>

#include "core/number.h"
#include "ops/compress_keys/problem.h"

namespace tessera::compress_keys {

// In: element type of keys and cache.
template <class Isa, class In>
struct CompressKeys {
  using vec = typename Isa::vec;
  static constexpr int kLanes = Isa::kLanes;
  static_assert(Isa::kPair == 1, "all is f32");

  struct Scratch {
    float x[kMaxDim];
    float cos[kMaxDim / 2], sin[kMaxDim / 2];
    float angle[kMaxDim / 2];      // within an eighth of a turn, in radians
    int32_t quarter[kMaxDim / 2];  // turns to add
  };

  // What is left of `a` in the type of the cache. Whole vectors go through memory, where conversions have instructions.
  static float rounded(float a) { return to_float(from_float<In>(a)); }
  static vec rounded_vec(vec a) {
    In in[kLanes];
    Isa::store_first(in, a, kLanes);
    return Isa::units(in, kLanes);
  }

  // x[0, kN * kLanes) = the mean of columns `from` on, of which `columns` exist; returns its squares.
  template <int kN>
  static vec mean_columns(const Rule& rule, const Run* runs, int from, int columns, float* x) {
    vec sum[kN];
#pragma GCC unroll 8
    for (int v = 0; v < kN; ++v) sum[v] = Isa::set1(0.0f);
    for (const Run* run = runs; run != runs + 3; ++run) {
      for (int64_t i = 0; i < run->count; ++i) {
        const In* row = reinterpret_cast<const In*>(run->data + i * run->stride) + from;
#pragma GCC unroll 8
        for (int v = 0; v < kN; ++v) sum[v] = Isa::add(sum[v], Isa::units(row + v * kLanes, columns - v * kLanes));
      }
    }
    const vec share = Isa::set1(1.0f / static_cast<float>(rule.block));
    vec squares = Isa::set1(0.0f);
#pragma GCC unroll 8
    for (int v = 0; v < kN; ++v) {
      const vec a = rounded_vec(Isa::mul(sum[v], share));
      squares = Isa::fma(a, a, squares);
      Isa::store(x + v * kLanes, a);
    }
    return squares;
  }

  // x = the mean of the block's rows; returns the mean of its squares.
  static float mean(const Rule& rule, const Run* runs, float* x) {
    const int dim = static_cast<int>(rule.dim);
    vec squares = Isa::set1(0.0f);
    int d = 0;
    for (; d + 8 * kLanes <= dim; d += 8 * kLanes) {
      squares = Isa::add(squares, mean_columns<8>(rule, runs, d, 8 * kLanes, x + d));
    }
    for (; d < dim; d += kLanes) squares = Isa::add(squares, mean_columns<1>(rule, runs, d, dim - d, x + d));
    return Isa::reduce_add(squares) * (1.0f / static_cast<float>(dim));
  }

  static void normalise(const Rule& rule, float mean_square, const float* __restrict gain, float* __restrict x) {
    const int dim = static_cast<int>(rule.dim);
    const float factor = 1.0f / sqrtf(mean_square + rule.eps);
    for (int d = 0; d < dim; ++d) x[d] = x[d] * factor * gain[d];
    for (int d = 0; rule.round && d < dim; d += kLanes) Isa::store(x + d, rounded_vec(Isa::load(x + d)));
  }

  // Adding and taking away 1.5 * 2^52 leaves the nearest whole number.
  static double nearest(double a) { return (a + 0x1.8p52) - 0x1.8p52; }

  static void angles(const double* turns, double position, int half, Scratch* s) {
    constexpr double kRadians = 6.283185307179586;
    for (int i = 0; i < half; ++i) {
      const double all = position * turns[i];
      const double part = all - nearest(all);  // in [-0.5, 0.5]
      const double quarters = nearest(4 * part);
      s->quarter[i] = static_cast<int32_t>(quarters);
      s->angle[i] = static_cast<float>((part - 0.25 * quarters) * kRadians);
    }
    for (int i = 0; i < half; ++i) {
      const float a = s->angle[i], aa = a * a;
      const float sine = a + a * aa * (-1.6666654611e-1f + aa * (8.3321608736e-3f + aa * -1.9515295891e-4f));
      const float cosine =
          1.0f - 0.5f * aa +
          aa * aa * (4.166664568298827e-2f + aa * (-1.388731625493765e-3f + aa * 2.443315711809948e-5f));
      const uint32_t quarter = static_cast<uint32_t>(s->quarter[i]);
      const uint32_t odd = 0u - (quarter & 1u);
      const uint32_t c = float_bits(cosine) ^ ((float_bits(cosine) ^ float_bits(sine)) & odd);
      const uint32_t n = float_bits(sine) ^ ((float_bits(cosine) ^ float_bits(sine)) & odd);
      s->cos[i] = bits_float(c ^ ((quarter + 1u) << 30 & 0x80000000u));  // negative in quarters 1 and 2
      s->sin[i] = bits_float(n ^ (quarter << 30 & 0x80000000u));         // in 2 and 3
    }
  }

  template <bool kRound>
  static void turn(const float* __restrict cos, const float* __restrict sin, int half, float* __restrict x,
                   float* __restrict y) {
    for (int i = 0; i < half; ++i) {
      const float a = x[i], b = y[i];
      if (kRound) {
        const float c = rounded(cos[i]), s = rounded(sin[i]);
        x[i] = rounded(rounded(a * c) + rounded(-b * s));
        y[i] = rounded(rounded(b * c) + rounded(a * s));
      } else {
        x[i] = a * cos[i] - b * sin[i];
        y[i] = b * cos[i] + a * sin[i];
      }
    }
  }

  static void compress(const Rule& rule, const Tables& tables, const Block& block) {
    Scratch s;
    normalise(rule, mean(rule, block.runs, s.x), tables.gain, s.x);
    const int half = static_cast<int>(rule.half);
    const float *cos = block.cos, *sin = block.sin;
    if (half != 0 && cos == nullptr) {
      angles(tables.turns, static_cast<double>(block.position), half, &s);
      cos = s.cos;
      sin = s.sin;
    }
    const auto turn_pairs = rule.round ? turn<true> : turn<false>;
    turn_pairs(cos, sin, half, s.x, s.x + half);
    const int dim = static_cast<int>(rule.dim);
    In* out = static_cast<In*>(block.out);
    for (int d = 0; d < dim; d += kLanes)
      Isa::store_first(out + d, Isa::load(s.x + d), dim - d < kLanes ? dim - d : kLanes);
  }

  static constexpr Kernel kernel() { return {compress}; }
};

}  // namespace tessera::compress_keys

#endif  // TESSERA_OPS_COMPRESS_KEYS_KERNEL_H_
