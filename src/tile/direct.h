// Scores of a few rows against keys as they lie in memory, for keys that are used too seldom to be packed.
//
// Packing 128 keys of 128 features costs as much as multiplying them with 16 rows. Here the small side is packed instead:
// the rows of q are the panel, once per task, and the keys are the rows of the multiplication, read in place (or widened,
// 32 at a time, where an operand is not an element). That gives S^T, which is transposed: an eighth of the work of
// transposing the keys at D = 128. Every score sums its features in the same order as with packed keys: the same bits.
#ifndef TESSERA_TILE_DIRECT_H_
#define TESSERA_TILE_DIRECT_H_

#include <stddef.h>
#include <stdint.h>

#include "tile/gemm.h"
#include "tile/panel.h"

namespace tessera {

template <class Isa, class In>
struct DirectScores {
  using operand = typename Isa::operand;
  using vec = typename Isa::vec;
  using P = Panels<Isa>;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kBatch = 32;    // keys at a time
  static constexpr int kMaxRows = 48;  // of q

  // Scratch: S^T of a batch, then its keys as operands; the latter only if elements are not operands.
  static size_t scratch_bytes(int64_t dim) {
    return kBatch * (kMaxRows * sizeof(float) + static_cast<size_t>(P::steps(dim)) * 4);
  }

  // s_rows[row][key] = q[row] . keys[key]; `panel` is pack_keys() of the `rows` rows of q. The rows of s have room for
  // whole vectors.
  static void scores(const In* const* keys, int count, int dim, const operand* panel, int rows, char* scratch,
                     float* const* s_rows, Ahead* ahead) {
    float* const s_t = reinterpret_cast<float*>(scratch);
    operand* const widened = reinterpret_cast<operand*>(scratch + kBatch * kMaxRows * sizeof(float));
    const int steps = P::steps(dim);
    const int vecs = P::vecs(rows);
    const operand* a[kBatch];
    float* c[kBatch];
    for (int i = 0; i < kBatch; ++i) c[i] = s_t + i * vecs * kLanes;
    for (int first = 0; first < count; first += kBatch) {
      const int n = count - first < kBatch ? count - first : kBatch;
      load(keys + first, n, dim, widened, a);
      for (int p = 0; p < P::count(vecs); ++p) {
        const int begin = P::begin(vecs, p);
        const int width = P::begin(vecs, p + 1) - begin;
        Gemm<Isa>::one(P::at(panel, steps, begin), width * kLanes * Isa::kPair, steps, width, false, n, a, c,
                       begin * kLanes, ahead);
      }
      for (int v = 0; v < vecs; ++v) transpose(s_t, n, vecs, v, rows, first, s_rows);
    }
  }

 private:
  // Pairs of an odd number of features would read past the row.
  static void load(const In* const* keys, int n, int dim, operand* widened, const operand** a) {
    if constexpr (kSameType<In, operand>) {
      if (dim % Isa::kPair == 0) {
        for (int i = 0; i < n; ++i) a[i] = keys[i];
        return;
      }
    }
    constexpr int kWide = kLanes * Isa::kPair;
    const int stride = P::steps(dim) * Isa::kPair;
    for (int i = 0; i < n; ++i) {
      operand* to = widened + i * stride;
      a[i] = to;
      int d = 0;
      for (; d + kWide <= dim; d += kWide) Isa::store_unit(to + d, Isa::units(keys[i] + d, kWide));
      if (d == dim) continue;
      operand rest[kWide];
      Isa::store_unit(rest, Isa::units(keys[i] + d, dim - d));
      for (int k = 0; d + k < stride; ++k) to[d + k] = rest[k];
    }
  }

  // Vector v of the columns of S^T, n keys long, becomes rows [v * kLanes, ...) of S.
  static void transpose(const float* s_t, int n, int vecs, int v, int rows, int first, float* const* s_rows) {
    for (int key = 0; key < n; key += kLanes) {
      vec r[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        r[i] = key + i < n ? Isa::load(s_t + ((key + i) * vecs + v) * kLanes) : Isa::set1(0.0f);
      }
      Isa::transpose(r);
      for (int i = 0; i < kLanes && v * kLanes + i < rows; ++i) Isa::store(s_rows[v * kLanes + i] + first + key, r[i]);
    }
  }
};

}  // namespace tessera

#endif  // TESSERA_TILE_DIRECT_H_
