#include "ops/screen_keys/screen_keys.h"

#include <algorithm>
#include <cmath>

#include "core/number.h"
#include "cpu/features.h"
#include "ops/layout.h"
#include "runtime/executor.h"

namespace tessera::screen_keys {
namespace {

// Features of a task: some 30 us.
constexpr int64_t kTaskFeatures = int64_t{1} << 15;

// Scales for which the bound of qsa_score/screen.h holds.
constexpr float kLeastScale = 0x1p-40f, kMostScale = 0x1p40f;

template <class In>
float screen_key(const In* key, int64_t dim, int8_t* codes) {
  uint32_t most = 0;  // bits of positive floats order like them, NaN above
  for (int64_t i = 0; i < dim; ++i) most = std::max(most, float_bits(to_float(key[i])) & 0x7fffffffu);
  const float scale = bits_float(most) / 127.0f;
  const bool good = scale >= kLeastScale && scale <= kMostScale;
  if (!good) {
    std::fill_n(codes, dim, int8_t{0});
    return most == 0 ? 0.0f : std::nanf("");
  }
  for (int64_t i = 0; i < dim; ++i) {
    const float x = to_float(key[i]) / scale;
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(x + (x < 0.0f ? -0.5f : 0.5f)));
  }
  return scale;
}

template <class In>
void screen_rows(const Problem& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    int64_t key = 0, code = 0, scale = 0, row = r;
    for (int axis = p.keys.ndim - 2; axis >= 0; --axis) {
      const int64_t i = row % p.keys.shape[axis];
      row /= p.keys.shape[axis];
      key += i * p.keys.stride[axis];
      code += i * p.codes.stride[axis];
      scale += i * p.scales.stride[axis];
    }
    static_cast<float*>(p.scales.data)[scale] =
        screen_key(static_cast<const In*>(p.keys.data) + key, p.dim, static_cast<int8_t*>(p.codes.data) + code);
  }
}

}  // namespace

// Keys come one by one as tokens do, so plain loops, which compilers vectorise, are fast enough in every variant.
Status run(const Problem& p, const tessera_context& context) {
  if (context.variant != nullptr) {
    std::string why = why_unavailable(*find_variant(context.variant));
    if (!why.empty()) return not_implemented(std::move(why));
  }
  const auto rows = p.keys.dtype == TESSERA_BF16  ? screen_rows<bf16>
                    : p.keys.dtype == TESSERA_F16 ? screen_rows<f16>
                                                  : screen_rows<float>;
  const int64_t task_rows = std::max<int64_t>(1, kTaskFeatures / std::max<int64_t>(1, p.dim));
  const Executor executor(context.executor);
  executor.parallel_for(
      ceil_div(p.rows, task_rows),
      [&](int64_t task, int) { rows(p, task * task_rows, std::min(p.rows, (task + 1) * task_rows)); }, "screen_keys");
  return {};
}

}  // namespace tessera::screen_keys
