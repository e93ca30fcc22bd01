#include "ops/topk_blocks/check.h"

#include <string>

#include "core/check.h"

namespace tessera::topk_blocks {

Status check(const tessera_topk_blocks_args& a, Problem* p) {
  Checker c;
  c.tensor("scores", a.scores, "[..., N]", {1, 2, 3, 4, 5}, {TESSERA_F32});
  if (!c.ok()) return c.take();
  const int last = a.scores.ndim - 1;
  c.tensor("indices", a.indices, "[..., k]", {last + 1}, {TESSERA_I32});
  for (int axis = 0; axis < last; ++axis) c.axis("indices", a.indices, axis, a.scores.shape[axis], "scores");
  c.require(!c.ok() || a.indices.shape[last] > 0, [] { return invalid("k is 0; expected at least 1"); });
  c.output("indices", a.indices);
  c.disjoint("indices", a.indices, "scores", a.scores);
  c.require(a.scores.shape[last] <= INT32_MAX, [&] {
    return not_implemented("rows of more than " + std::to_string(INT32_MAX) + " scores are not supported; scores has " +
                           std::to_string(a.scores.shape[last]));
  });
  if (!c.ok()) return c.take();
  *p = {a.scores, a.indices, 1, a.scores.shape[last], a.indices.shape[last], TESSERA_F32};
  for (int axis = 0; axis < last; ++axis) p->rows *= a.scores.shape[axis];
  return {};
}

}  // namespace tessera::topk_blocks
