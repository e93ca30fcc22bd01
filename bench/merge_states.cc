// Merging four normalised partials that do not fit the caches, per variant and type: bytes read and written per second.
#include "bench.h"

namespace tessera::bench {
namespace {

void run(benchmark::State& state, const char* variant, tessera_dtype dtype) {
  constexpr int64_t kStates = 4, kRows = 1 << 17, kDim = 128;
  std::vector<Tensor> outs, lses;
  std::vector<tessera_tensor> out_views, lse_views;
  for (int64_t i = 0; i < kStates; ++i) {
    out_views.push_back(outs.emplace_back(dtype, std::vector<int64_t>{kRows, kDim}).view());
    lse_views.push_back(lses.emplace_back(TESSERA_F32, std::vector<int64_t>{kRows}).view());
  }
  const Tensor out(dtype, {kRows, kDim}), lse(TESSERA_F32, {kRows});
  const tessera_merge_states_args args = {out_views.data(), lse_views.data(), kStates, out.view(), lse.view()};
  const tessera_context context = one_thread(variant);
  measure(state, variant, TESSERA_CEILING_STREAM, static_cast<double>((kStates + 1) * (out.bytes() + lse.bytes())),
          [&] { return tessera_merge_states(&args, &context); });
}

const bool registered = for_each_variant([](const char* variant, tessera_dtype dtype) {
  const std::string name = std::string("merge_states/4x131072x128/") + dtype_text(dtype) + "/" + variant;
  benchmark::RegisterBenchmark(name.c_str(), [variant, dtype](benchmark::State& state) {
    run(state, variant, dtype);
  })->Unit(benchmark::kMillisecond);
});

}  // namespace
}  // namespace tessera::bench
