// Block-sparse attention on one thread, per variant and type, for shapes that differ in what limits them.
#include "../tests/cases/block_attn.h"

#include <algorithm>
#include <random>

#include "bench.h"
#include "ops/block_attn/variants.h"

namespace tessera::bench {
namespace {

using cases::BlockAttn;

struct Named {
  const char* name;
  BlockAttn shape;
};

constexpr Named kShapes[] = {
    {"G16_D128",
     {.queries = 512, .keys = 2048, .group = 16, .dim = 128, .dim_v = 128, .block = 128, .block_q = 128, .width = 8}},
    {"G1_D128",
     {.queries = 512, .keys = 2048, .group = 1, .dim = 128, .dim_v = 128, .block = 128, .block_q = 128, .width = 8}},
    {"G3_D64",
     {.queries = 512, .keys = 2048, .group = 3, .dim = 64, .dim_v = 64, .block = 64, .block_q = 64, .width = 16}},
    {"G4_D80",
     {.queries = 512, .keys = 2048, .group = 4, .dim = 80, .dim_v = 80, .block = 64, .block_q = 64, .width = 16}},
    {"token_lists_G16_D128",
     {.queries = 64, .keys = 2048, .group = 16, .dim = 128, .dim_v = 128, .block = 128, .block_q = 1, .width = 8}},
    {"decode_G8_D128",
     {.queries = 1, .keys = 8192, .group = 8, .dim = 128, .dim_v = 128, .block = 128, .block_q = 1, .width = 64}},
};

struct Call {
  Tensor q, k, v, ids, out;
  double flops;

  Call(const BlockAttn& c, tessera_dtype dtype)
      : q(dtype, {1, c.queries, c.heads(), c.dim}),
        k(dtype, {1, c.keys, c.kv_heads, c.dim}),
        v(dtype, {1, c.keys, c.kv_heads, c.dim_v}),
        ids(TESSERA_I32, {1, c.lists(), c.width}),
        out(dtype, {1, c.queries, c.heads(), c.dim_v}),
        flops(0) {
    std::minstd_rand random(1);
    for (int64_t n = 0; n < c.lists(); ++n) {
      const int64_t first = c.keys - c.queries + n * c.block_q;
      const int64_t own = first / c.block;
      std::vector<int32_t> earlier(static_cast<size_t>(own));
      for (size_t i = 0; i < earlier.size(); ++i) earlier[i] = static_cast<int32_t>(i);
      std::shuffle(earlier.begin(), earlier.end(), random);
      int32_t* const list = ids.data<int32_t>() + n * c.width;
      list[0] = static_cast<int32_t>(own);
      for (int64_t i = 1; i < c.width; ++i) {
        list[i] = i <= own ? earlier[static_cast<size_t>(i - 1)] : -1;
      }
      const int64_t others = std::min(c.width - 1, own) * c.block;
      for (int64_t t = first; t < first + c.block_q; ++t) {
        flops += 2.0 * static_cast<double>((c.dim + c.dim_v) * c.heads() * (others + t - own * c.block + 1));
      }
    }
  }

  tessera_block_sparse_gqa_prefill_args args(const BlockAttn& c) const {
    tessera_block_sparse_gqa_prefill_args a = {};
    a.q = q.view();
    a.k = k.view();
    a.v = v.view();
    a.kv_indices = ids.view();
    a.block_size = c.block;
    a.block_q = c.block_q;
    a.out = out.view();
    return a;
  }
};

void run(benchmark::State& state, const char* variant, tessera_dtype dtype, const BlockAttn& c) {
  const Call call(c, dtype);
  const auto args = call.args(c);
  const tessera_context context = one_thread(variant);
  const bool dots = dtype == TESSERA_BF16 && std::string(variant).ends_with("bf16");
  measure(state, variant, dots ? TESSERA_CEILING_BF16_DOT : TESSERA_CEILING_F32_FMA, call.flops,
          [&] { return tessera_block_sparse_gqa_prefill(&args, &context); });
}

const bool registered = for_each_variant([](const char* variant, tessera_dtype dtype) {
  for (const block_attn::Variant& v : block_attn::variants()) {
    if (std::strcmp(v.name, variant) != 0 || v.kernel(dtype) == nullptr) continue;
    for (const Named& shape : kShapes) {
      const std::string name = std::string("block_attn/") + shape.name + "/" + dtype_text(dtype) + "/" + variant;
      benchmark::RegisterBenchmark(name.c_str(), [variant, dtype, &shape](benchmark::State& state) {
        run(state, variant, dtype, shape.shape);
      })->Unit(benchmark::kMillisecond);
    }
  }
});

}  // namespace
}  // namespace tessera::bench
