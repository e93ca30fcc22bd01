#include "ops/screen_keys/check.h"

#include "core/check.h"

namespace tessera::screen_keys {

Status check(const tessera_qsa_screen_keys_args& a, Problem* p) {
  Checker c;
  c.tensor("keys", a.keys, "[..., D]", {1, 2, 3, 4, 5}, {TESSERA_BF16, TESSERA_F16, TESSERA_F32});
  c.unit_feature("keys", a.keys);
  if (!c.ok()) return c.take();
  const int last = a.keys.ndim - 1;
  *p = {a.keys, a.codes, as_vector(a.scales), 1, a.keys.shape[last]};
  c.tensor("codes", a.codes, "as keys", {last + 1}, {TESSERA_I8});
  c.unit_feature("codes", a.codes);
  for (int axis = 0; axis <= last; ++axis) c.axis("codes", a.codes, axis, a.keys.shape[axis], "as keys");
  c.per_row("scales", a.scales, a.keys, "keys", TESSERA_F32);
  c.output("codes", a.codes);
  c.output("scales", p->scales);
  c.disjoint("codes", a.codes, "keys", a.keys);
  c.disjoint("scales", p->scales, "keys", a.keys);
  c.disjoint("scales", p->scales, "codes", a.codes);
  for (int axis = 0; c.ok() && axis < last; ++axis) p->rows *= a.keys.shape[axis];
  return c.take();
}

}  // namespace tessera::screen_keys
