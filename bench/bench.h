// What the microbenchmarks share: tensors, one benchmark per variant, and rates as shares of the measured ceiling.
#ifndef TESSERA_BENCH_BENCH_H_
#define TESSERA_BENCH_BENCH_H_

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/number.h"
#include "tessera/tessera.h"

namespace tessera::bench {

// A dense tensor of N(0, 1), or of zeros for int32.
class Tensor {
 public:
  Tensor(tessera_dtype dtype, const std::vector<int64_t>& shape) {
    const bool wide = dtype == TESSERA_F32 || dtype == TESSERA_I32;
    view_.dtype = dtype;
    view_.ndim = static_cast<int32_t>(shape.size());
    int64_t elements = 1;
    for (int axis = view_.ndim - 1; axis >= 0; --axis) {
      view_.shape[axis] = shape[static_cast<size_t>(axis)];
      view_.stride[axis] = elements;
      elements *= view_.shape[axis];
    }
    bytes_.resize(static_cast<size_t>(elements) * (wide ? 4 : 2));
    view_.data = bytes_.data();
    if (dtype != TESSERA_I32) fill(elements);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&&) = default;

  const tessera_tensor& view() const { return view_; }
  size_t bytes() const { return bytes_.size(); }
  template <class T>
  T* data() {
    return reinterpret_cast<T*>(bytes_.data());
  }

 private:
  void fill(int64_t elements) {
    std::minstd_rand random(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < elements; ++i) {
      const float x = normal(random);
      if (view_.dtype == TESSERA_F32) data<float>()[i] = x;
      if (view_.dtype == TESSERA_BF16) data<bf16>()[i] = from_float<bf16>(x);
      if (view_.dtype == TESSERA_F16) data<f16>()[i] = from_float<f16>(x);
    }
  }

  tessera_tensor view_ = {};
  std::vector<std::byte> bytes_;
};

inline const char* dtype_text(tessera_dtype dtype) {
  return dtype == TESSERA_BF16 ? "bf16" : dtype == TESSERA_F16 ? "f16" : "f32";
}

// One thread: what a kernel does, not what the pool does.
inline tessera_context one_thread(const char* variant) {
  tessera_context context = {};
  context.executor = {TESSERA_EXECUTOR_THREADS, 1, 0, 0, nullptr, nullptr};
  context.variant = variant;
  return context;
}

// Runs `call` until google-benchmark has enough; false skips with the library's message. Reports `amount` (FLOP or bytes) per
// second and its share of the ceiling, which is measured right after.
template <class Call>
void measure(benchmark::State& state, const char* variant, tessera_ceiling_kind kind, double amount, const Call& call) {
  if (call() != TESSERA_OK) return state.SkipWithError(tessera_last_error());
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (auto _ : state) call();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const double rate = 1e-9 * amount * static_cast<double>(state.iterations()) / seconds;
  double ceiling = 0;
  if (tessera_measure_ceiling(kind, variant, 1, 0.05, &ceiling) != TESSERA_OK) {
    return state.SkipWithError(tessera_last_error());
  }
  state.counters[kind == TESSERA_CEILING_STREAM ? "GB/s" : "GFLOP/s"] = rate;
  state.counters["ceiling"] = ceiling;
  state.counters["share"] = rate / ceiling;
}

// register_one(name of the variant, dtype), for every variant that runs here.
template <class RegisterOne>
bool for_each_variant(const RegisterOne& register_one) {
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    if (!tessera_variant_available(i)) continue;
    for (tessera_dtype dtype : {TESSERA_BF16, TESSERA_F16, TESSERA_F32}) register_one(tessera_variant_name(i), dtype);
  }
  return true;
}

}  // namespace tessera::bench

#endif  // TESSERA_BENCH_BENCH_H_
