// Online softmax of one row, block after block: the state (m, l, o) and its steps. m is in log2 units, p = 2^(s * scale - m).
//
// m is a reference, not always the maximum: it moves only when a score exceeds it by more than 8, so almost no block
// rescales o (probabilities stay below 2^8, far from any overflow, and relative precision does not care). The true
// maximum is kept beside it, lane by lane, for callers that ask for (o, l, m).
#ifndef TESSERA_TILE_SOFTMAX_H_
#define TESSERA_TILE_SOFTMAX_H_

#include <math.h>
#include <stdint.h>

namespace tessera {

// kExact: probabilities accurate to f32, for f32 inputs.
template <class Isa, bool kExact>
struct OnlineSoftmax {
  using vec = typename Isa::vec;
  using operand = typename Isa::operand;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr float kSlack = 8.0f;

  // One row's running state; the lane arrays have kLanes elements.
  struct Row {
    float* m;    // reference, log2 units; -inf before the first block
    float* l;    // lane sums of p
    float* max;  // lane maxima of raw scores
    float* o;    // [o_vecs * kLanes]
  };

  static void clear(const Row& row, int o_vecs) {
    *row.m = -INFINITY;
    Isa::store(row.l, Isa::set1(0.0f));
    for (int v = 0; v < o_vecs; ++v) Isa::store(row.o + v * kLanes, Isa::set1(0.0f));
  }

  static float exp2_one(float x) {
    float lanes[kLanes];
    Isa::store(lanes, Isa::template exp2<kExact>(Isa::set1(x)));
    return lanes[0];
  }

  // s: `visible` >= 1 scores, then anything up to `vecs` vectors. Writes the probabilities to p, zeros after the visible
  // ones, and brings the row's m, l, max and o up to date (o for the new reference only). p may alias s.
  static void step(const float* s, operand* p, int visible, int vecs, float scale, const Row& row, int o_vecs) {
    const int full = visible / kLanes;
    const int rest = visible % kLanes;
    vec top = Isa::set1(-INFINITY);
    for (int v = 0; v < full; ++v) top = Isa::max(Isa::load(s + v * kLanes), top);
    if (rest != 0) top = Isa::max(Isa::keep_first(Isa::load(s + full * kLanes), rest, -INFINITY), top);
    Isa::store(row.max, Isa::max(top, Isa::load(row.max)));

    const vec scaled = Isa::mul(top, Isa::set1(scale));
    if (Isa::greater(scaled, Isa::set1(*row.m + kSlack)) != 0) raise(Isa::reduce_max(scaled), row, o_vecs);

    const vec factor = Isa::set1(scale);
    const vec minus_m = Isa::set1(-*row.m);
    vec sum = Isa::load(row.l);
    for (int v = 0; v < full; ++v) {
      const vec e = Isa::template exp2<kExact>(Isa::fma(Isa::load(s + v * kLanes), factor, minus_m));
      sum = Isa::add(sum, e);
      Isa::store_operands(p + v * kLanes, e);
    }
    int done = full;
    if (rest != 0) {
      const vec x = Isa::fma(Isa::load(s + full * kLanes), factor, minus_m);
      const vec e = Isa::keep_first(Isa::template exp2<kExact>(x), rest, 0.0f);
      sum = Isa::add(sum, e);
      Isa::store_operands(p + full * kLanes, e);
      ++done;
    }
    for (int v = done; v < vecs; ++v) Isa::store_operands(p + v * kLanes, Isa::set1(0.0f));
    Isa::store(row.l, sum);
  }

  // Moves the reference up to m.
  static void raise(float m, const Row& row, int o_vecs) {
    const vec alpha = Isa::set1(exp2_one(*row.m - m));
    *row.m = m;
    Isa::store(row.l, Isa::mul(Isa::load(row.l), alpha));
    for (int v = 0; v < o_vecs; ++v) Isa::store(row.o + v * kLanes, Isa::mul(Isa::load(row.o + v * kLanes), alpha));
  }

  // |scale| * log2(e): from raw scores to log2 units. A scale of zero would turn the -inf of absent maxima into NaN; the
  // smallest normal number keeps every finite score at zero just as well.
  static float log2_factor(float scale) {
    const double magnitude = fabs(static_cast<double>(scale)) * 1.4426950408889634;
    return magnitude > 1.2e-38 ? static_cast<float>(magnitude) : 1.2e-38f;
  }

  // A finished run of blocks as plain numbers, and the merge of such runs in order. Merging into an empty state returns
  // the other bit for bit, but for the sign of a zero.
  struct Part {
    float m;  // log2 units; -inf: empty
    float l;
    float max;  // raw score
    float* o;

    bool empty() const { return m == -INFINITY && l == 0.0f; }
    // The natural logarithm of the sum of exp(scaled scores).
    float lse() const {
      const double ln2 = 0.6931471805599453;
      return empty() ? -INFINITY : static_cast<float>(static_cast<double>(m) * ln2 + log(static_cast<double>(l)));
    }
  };
  static Part part_of(const Row& row) {
    return {*row.m, Isa::reduce_add(Isa::load(row.l)), Isa::reduce_max(Isa::load(row.max)), row.o};
  }
  static void merge(Part* into, const Part& from, int o_vecs) {
    if (from.empty()) return;
    const float m = into->m > from.m ? into->m : from.m;
    const float a = exp2_one(into->m - m);
    const float b = exp2_one(from.m - m);
    into->m = m;
    into->l = into->l * a + from.l * b;
    into->max = into->max > from.max ? into->max : from.max;
    for (int v = 0; v < o_vecs; ++v) {
      const vec scaled = Isa::mul(Isa::load(from.o + v * kLanes), Isa::set1(b));
      Isa::store(into->o + v * kLanes, Isa::fma(Isa::load(into->o + v * kLanes), Isa::set1(a), scaled));
    }
  }

  // out[0, dim) = o * weight. The sign of a zero in o depends on the rows and chunks around; plus zero, it is +0.
  template <class Out>
  static void store(Out* out, const float* o, float weight, int dim) {
    for (int d = 0; d < dim; d += kLanes) {
      Isa::store_first(out + d, Isa::fma(Isa::load(o + d), Isa::set1(weight), Isa::set1(0.0f)), dim - d);
    }
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_SOFTMAX_H_
