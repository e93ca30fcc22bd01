#include "ops/block_pool/check.h"

#include "ops/select_topk/check.h"

namespace tessera::block_pool {

Status check(const tessera_moba_select_args& a, Problem* p) {
  Checker c;
  *p = {};
  select_topk::check({a, kDefaultBlock, kDefaultBlockQ}, &c, p);
  return c.take();
}

}  // namespace tessera::block_pool
