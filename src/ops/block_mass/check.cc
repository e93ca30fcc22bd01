#include "ops/block_mass/check.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ops/select_topk/check.h"

namespace tessera::block_mass {

Status check(const tessera_mass_select_args& a, Problem* p) {
  Checker c;
  *p = {};
  select_topk::check({a, kDefaultBlock, kDefaultBlockQ}, &c, p);
  c.require(a.stride >= 0, [&] { return invalid("stride is " + std::to_string(a.stride) + "; expected at least 1"); });
  c.require(a.softmax_scale == nullptr || std::isfinite(*a.softmax_scale),
            [&] { return invalid("softmax_scale is not finite"); });
  if (!c.ok()) return c.take();
  p->stride = std::min(a.stride == 0 ? kDefaultStride : a.stride, p->block_q);
  p->scale = a.softmax_scale != nullptr ? *a.softmax_scale : 1.0f / std::sqrt(static_cast<float>(p->dim));
  return {};
}

}  // namespace tessera::block_mass
