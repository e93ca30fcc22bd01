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
      // A maximum with a NaN on the right is NaN. What reaches 2^127 is taken for infinity.
      const vec exponent = Isa::max(Isa::set1(-127.0f), Isa::mul(Isa::load(x), Isa::set1(1.4426950408889634f)));
      const vec power = Isa::template exp2<true>(Isa::mul(exponent, Isa::set1(-1.0f)));
      Isa::store(x, Isa::add(power, Isa::set1(1.0f)));
      for (int i = 0; i < n; ++i) {
        const float o = to_float(out[d + i]);
        out[d + i] = from_float<Out>(x[i] >= 0x1p127f ? o * 0.0f : o / x[i]);
      }
    }
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_GATE_H_
