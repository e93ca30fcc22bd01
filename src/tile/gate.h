// out *= sigmoid(gate), from an output that has been rounded: the bits of gating it afterwards.
#ifndef TESSERA_TILE_GATE_H_
#define TESSERA_TILE_GATE_H_

#include <stdint.h>

#include "core/number.h"
#include "tessera/tessera.h"

namespace tessera {

// The gates of an attention call: f32, or of the output's dtype.
struct Gate {
  const void* data;  // null: none
  tessera_dtype dtype;
  int64_t feature;  // stride; 0: one gate for all features of a head
};

template <class Isa, class Out>
struct ApplyGate {
  using vec = typename Isa::vec;
  static constexpr int kLanes = Isa::kLanes;

  // The features of one head; its gates begin at element `at`.
  static void apply(const Gate& gate, int64_t at, int dim, Out* out) {
    if (gate.dtype == TESSERA_F32) {
      apply(static_cast<const float*>(gate.data) + at, gate.feature, dim, out);
    } else {
      apply(static_cast<const Out*>(gate.data) + at, gate.feature, dim, out);
    }
  }

 private:
  template <class G>
  static void apply(const G* gates, int64_t stride, int dim, Out* out) {
    float x[kLanes];
    for (int d = 0; d < dim; d += kLanes) {
      const int n = dim - d < kLanes ? dim - d : kLanes;
      for (int i = 0; i < kLanes; ++i) x[i] = i < n ? to_float(gates[(d + i) * stride]) : 0.0f;
      Isa::store(x, Isa::add(exp_of_negative(Isa::load(x)), Isa::set1(1.0f)));
      // What reaches 2^127 is taken for infinity.
      for (int i = 0; i < n; ++i) {
        const float o = to_float(out[d + i]);
        out[d + i] = from_float<Out>(x[i] >= 0x1p127f ? o * 0.0f : o / x[i]);
      }
    }
  }

  // e^-x as 2^n 2^f: n = -x / ln 2 rounded, by a sum whose unit is 1, and f what that leaves. n times the first part of ln 2
  // is exact, so the result is as accurate at -80 as at 0. A maximum with a NaN on the right is NaN.
  static vec exp_of_negative(vec x) {
    const vec t = Isa::max(Isa::set1(-90.0f), Isa::mul(Isa::max(Isa::set1(-88.1f), x), Isa::set1(-1.0f)));
    const vec log2e = Isa::set1(1.4426950408889634f);
    const vec n = Isa::add(Isa::fma(t, log2e, Isa::set1(0x1.8p23f)), Isa::set1(-0x1.8p23f));
    const vec rest = Isa::fma(n, Isa::set1(-0x1.7f7d1cp-20f), Isa::fma(n, Isa::set1(-0x1.62e4p-1f), t));
    return Isa::mul(Isa::template exp2<true>(n), Isa::template exp2<true>(Isa::mul(rest, log2e)));
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_GATE_H_
