// The rows of a task: their queries, their softmax states, chunk by chunk, and what becomes of them in the end.
#ifndef TESSERA_OPS_BLOCK_ATTN_ROWS_H_
#define TESSERA_OPS_BLOCK_ATTN_ROWS_H_

#include <math.h>
#include <string.h>

#include "ops/block_attn/task.h"
#include "tile/panel.h"
#include "tile/softmax.h"

namespace tessera::block_attn {

template <class Isa, class In, bool kExact>
struct Rows : Task<Isa> {
  using vec = typename Isa::vec;
  using operand = typename Isa::operand;
  using P = Panels<Isa>;
  using Softmax = OnlineSoftmax<Isa, kExact>;
  using Part = typename Softmax::Part;
  using Base = Task<Isa>;
  using Base::scratch, Base::p, Base::plan, Base::r, Base::head, Base::tokens, Base::lists, Base::first_token;
  static constexpr int kLanes = Isa::kLanes;

  int o_vecs;
  float factor;  // |scale| * log2(e): raw scores to log2 units

  Rows(const Problem& problem, const Plan& a_plan, const Request& request, char* workspace, int64_t kv_head,
       int64_t a_tile, int worker)
      : Base(problem, a_plan, request, workspace, kv_head, a_tile, worker),
        o_vecs(P::vecs(problem.dim_v)),
        factor(Softmax::log2_factor(problem.scale)) {}

  // ---- Queries ----

  // Calls use<Q>() with the type of q and out: In, or where operands are f32 perhaps that.
  template <class Use>
  void with_q_type(const Use& use) const {
    if constexpr (kSameType<operand, float> && !kSameType<In, float>) {
      if (p.q_dtype == TESSERA_F32) return use.template operator()<float>();
    }
    use.template operator()<In>();
  }

  // Copies the tile's rows of q as operands; a negative scale negates them, which is exact.
  void load_q() const {
    with_q_type([&]<class Q>() { load_rows(static_cast<const Q*>(p.q)); });
    if (r.source == Source::kDirect) pack_q();
  }
  template <class Q>
  void load_rows(const Q* q) const {
    const int dim = static_cast<int>(p.dim);
    constexpr int kWide = kLanes * Isa::kPair;
    for (int64_t row = 0; row < tokens * p.group; ++row) {
      const int64_t h = head * p.group + row % p.group;
      const Q* from = q + this->row_at(p.q_stride, first_token + row / p.group, h);
      operand* to = at<operand>(scratch, plan.scratch.q) + row * plan.q_row;
      for (int d = 0; d < dim; d += kWide) Isa::store_unit(to + d, Isa::units(from + d, dim - d));
      if (p.scale < 0) {
        for (int d = 0; d < dim; ++d) to[d] = Isa::negate(to[d]);
      }
    }
  }
  const operand* q_row(int64_t row) const { return at<operand>(scratch, plan.scratch.q) + row * plan.q_row; }

  // Every list's rows, a group of them after the other, as panels for tile/direct.h.
  void pack_q() const {
    for (int64_t list = 0; list < lists; ++list) {
      for (int64_t row = 0; row < this->list_rows(list); row += kGroupRows) {
        const int64_t left = this->list_rows(list) - row;
        const int n = static_cast<int>(left < kGroupRows ? left : kGroupRows);
        const operand* rows[kGroupRows];
        for (int i = 0; i < n; ++i) rows[i] = q_row(this->first_row(list) + row + i);
        P::pack_keys(rows, n, static_cast<int>(p.dim), q_panel(list, row));
      }
    }
  }
  // The packed group that begins at `row` of list i.
  operand* q_panel(int64_t i, int64_t row) const {
    return at<operand>(scratch, plan.scratch.panels) + (i * plan.panel_rows + row) * P::steps(p.dim) * Isa::kPair;
  }

  // ---- States ----

  typename Softmax::Row state(int64_t row) const {
    return {at<float>(scratch, plan.scratch.m) + row, at<float>(scratch, plan.scratch.l) + row * kLanes,
            at<float>(scratch, plan.scratch.max) + row * kLanes, at<float>(scratch, plan.scratch.o) + row * plan.o_row};
  }
  void clear_row(int64_t row) const {
    const typename Softmax::Row cleared = state(row);
    Softmax::clear(cleared, o_vecs);
    Isa::store(cleared.max, Isa::set1(-INFINITY));
  }
  Part part_of(int64_t row) const { return Softmax::part_of(state(row)); }

  // The chunks of a row that have been merged; numbers are m, l, max.
  static Part part_at(const float* numbers, float* o) { return {numbers[0], numbers[1], numbers[2], o}; }
  float* sum_of(int64_t row) const { return at<float>(scratch, plan.scratch.sum) + row * 3; }
  Part sum_part(int64_t row) const {
    return part_at(sum_of(row), at<float>(scratch, plan.scratch.sum_o) + row * plan.o_row);
  }
  void clear_sum(int64_t row) const {
    float* const sum = sum_of(row);
    sum[0] = -INFINITY;
    sum[1] = 0.0f;
    sum[2] = -INFINITY;
    memset(sum_part(row).o, 0, static_cast<size_t>(plan.o_row) * sizeof(float));
  }
  void merge_into_sum(int64_t row, const Part& from) const {
    Part into = sum_part(row);
    Softmax::merge(&into, from, o_vecs);
    float* const sum = sum_of(row);
    sum[0] = into.m;
    sum[1] = into.l;
    sum[2] = into.max;
  }
  // Ends a row's chunk and begins the next.
  void fold(int64_t row) const {
    merge_into_sum(row, part_of(row));
    clear_row(row);
  }

  // A chunk that is a task of its own leaves its state in the workspace.
  float* partial(int64_t chunk, int64_t row) const {
    const int64_t slot = r.first_partial * p.kv_heads + (head * r.tiles + this->tile) * r.chunks + chunk;
    float* const first =
        reinterpret_cast<float*>(this->base + plan.partial + static_cast<size_t>(slot) * plan.partial_bytes);
    return first + row * (plan.o_row + 3);
  }
  void store_partial(int64_t chunk, int64_t row) const {
    const Part part = part_of(row);
    float* const to = partial(chunk, row);
    to[0] = part.m;
    to[1] = part.l;
    to[2] = part.max;
    memcpy(to + 3, part.o, static_cast<size_t>(plan.o_row) * sizeof(float));
  }
  void merge_partials(int64_t row) const {
    clear_sum(row);
    for (int64_t chunk = 0; chunk < r.chunks; ++chunk) {
      float* const from = partial(chunk, row);
      merge_into_sum(row, part_at(from, from + 3));
    }
  }

  // ---- Output ----

  void finish_row(int64_t row, const Part& part) const {
    const int64_t t = first_token + row / p.group;
    const int64_t h = head * p.group + row % p.group;
    const int dim = static_cast<int>(p.dim_v);
    if (p.o != nullptr) {
      finish_state(t, h, part);
      return;
    }
    with_q_type([&]<class Q>() {
      Q* const out = static_cast<Q*>(p.out) + this->row_at(p.out_stride, t, h);
      Softmax::store(out, part.o, part.empty() ? 0.0f : 1.0f / part.l, dim);
      if (p.gate.data != nullptr) ApplyGate<Isa, Q>::apply(p.gate, this->row_at(p.gate_stride, t, h), dim, out);
    });
    if (p.lse != nullptr) p.lse[this->row_at(p.lse_stride, t, h)] = part.lse();
  }

 private:
  // l and o are brought from the reference m to the true maximum.
  void finish_state(int64_t t, int64_t h, const Part& part) const {
    const double to_max = static_cast<double>(part.m) - static_cast<double>(part.max) * factor;
    const float weight = part.empty() ? 0.0f : static_cast<float>(::exp2(to_max));
    Softmax::store(p.o + this->row_at(p.o_stride, t, h), part.o, weight, static_cast<int>(p.dim_v));
    p.l[this->row_at(p.l_stride, t, h)] = part.l * weight;
    p.m[this->row_at(p.m_stride, t, h)] = part.empty() ? -INFINITY : part.max * fabsf(p.scale);
  }
};

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_ROWS_H_
