#include "ops/expand_blocks/check.h"

#include "core/check.h"

namespace tessera::expand_blocks {
namespace {

constexpr int64_t kDefaultBlock = 4;

}  // namespace

Status check(const tessera_qsa_expand_blocks_args& a, Problem* p) {
  Checker c;
  c.tensor("block_ids", a.block_ids, "[..., K]", {1, 2, 3, 4, 5}, {TESSERA_I32});
  if (!c.ok()) return c.take();
  const int last = a.block_ids.ndim - 1;
  *p = {a.block_ids, a.query_positions, a.token_indices, 1, a.block_ids.shape[last], 0, 0};
  c.per_row("query_positions", a.query_positions, a.block_ids, "block_ids", TESSERA_I32);
  p->block = a.block_size == 0 ? kDefaultBlock : a.block_size;
  c.require(p->block >= 1,
            [&] { return invalid("block_size is " + std::to_string(p->block) + "; expected at least 1"); });
  const bool fits = !__builtin_mul_overflow(p->count, p->block, &p->width) &&
                    !__builtin_add_overflow(p->width, p->block - 1, &p->width);
  c.require(fits, [&] {
    return invalid("block_size is " + std::to_string(p->block) + ", too much for " + std::to_string(p->count) +
                   " blocks");
  });
  c.tensor("token_indices", a.token_indices, "[..., K * block_size + block_size - 1]", {last + 1}, {TESSERA_I32});
  for (int axis = 0; axis < last; ++axis) {
    c.axis("token_indices", a.token_indices, axis, a.block_ids.shape[axis], "block_ids");
  }
  c.axis("token_indices", a.token_indices, last, p->width, "K * block_size + block_size - 1");
  c.output("token_indices", a.token_indices);
  c.disjoint("token_indices", a.token_indices, "block_ids", a.block_ids);
  c.disjoint("token_indices", a.token_indices, "query_positions", as_vector(a.query_positions));
  for (int axis = 0; c.ok() && axis < last; ++axis) p->rows *= a.block_ids.shape[axis];
  return c.take();
}

}  // namespace tessera::expand_blocks
