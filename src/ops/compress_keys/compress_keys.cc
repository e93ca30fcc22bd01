#include "ops/compress_keys/compress_keys.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/number.h"
#include "ops/compress_keys/variants.h"
#include "ops/layout.h"
#include "runtime/executor.h"

namespace tessera::compress_keys {
namespace {

// Elements read by a task: some 10 us of memory traffic.
constexpr int64_t kTaskElements = int64_t{1} << 15;

float weight(const tessera_tensor& w, int64_t d) {
  const int64_t i = d * w.stride[0];
  if (w.dtype == TESSERA_BF16) return to_float(static_cast<const bf16*>(w.data)[i]);
  if (w.dtype == TESSERA_F16) return to_float(static_cast<const f16*>(w.data)[i]);
  return static_cast<const float*>(w.data)[i];
}

}  // namespace

void fill(const Rule& rule, bool by_position, Tables* tables) {
  for (int64_t d = 0; d < rule.dim; ++d) tables->gain[d] = 1.0f + weight(rule.norm_weight, d);
  if (!by_position) return;
  for (int64_t i = 0; i < rule.half; ++i) {
    const double power = -static_cast<double>(i) / static_cast<double>(rule.half);
    tables->turns[i] = std::pow(rule.theta, power) / (2 * std::numbers::pi);
  }
}

void turn_block(const Rotation& r, int64_t b, int64_t i, int64_t position, Block* block) {
  block->cos = r.cos == nullptr ? nullptr : r.cos + b * r.cos_request + i * r.cos_block;
  block->sin = r.sin == nullptr ? nullptr : r.sin + b * r.sin_request + i * r.sin_block;
  block->position = r.positions == nullptr ? position : r.positions[b * r.position_request + i * r.position_block];
}

Status run(const Problem& p, const tessera_context& context) {
  Status complaint;
  const Variant* const variant = choose_variant(variants(), context.variant, p.rule.dtype, &complaint);
  if (variant == nullptr) return complaint;
  const Kernel& kernel = *variant->kernel(p.rule.dtype);
  const int64_t blocks = p.requests * p.blocks;
  if (blocks == 0) return {};
  Tables tables;
  fill(p.rule, p.rotation.cos == nullptr, &tables);
  const int64_t task_blocks = std::max<int64_t>(1, kTaskElements / p.rule.dim / p.rule.block);
  const Executor executor(context.executor);
  executor.parallel_for(
      ceil_div(blocks, task_blocks),
      [&](int64_t task, int) {
        const int64_t end = std::min(blocks, (task + 1) * task_blocks);
        for (int64_t i = task * task_blocks; i < end; ++i) {
          const int64_t b = i / p.blocks, g = i % p.blocks;
          Block block = {};
          block.runs[0] = {p.raw.at(b, g * p.rule.block), p.raw.row, p.rule.block};
          block.out = p.out.at(b, g);
          turn_block(p.rotation, b, g, g * p.rule.block, &block);
          kernel.compress(p.rule, tables, block);
        }
      },
      "compress_keys");
  return {};
}

}  // namespace tessera::compress_keys
