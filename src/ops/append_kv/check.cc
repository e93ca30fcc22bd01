#include "ops/append_kv/check.h"

#include <string>

#include "core/check.h"
#include "core/packed_layout.h"

namespace tessera::append_kv {
namespace {

constexpr auto kFloats = {TESSERA_BF16, TESSERA_F16, TESSERA_F32};
constexpr int kRowMajorRank = 4;
constexpr int kPackedRank = 5;

// Without v and v_cache, keys alone are written.
bool has_values(const tessera_append_kv_args& a) { return given(a.v); }

bool packed(const tessera_append_kv_args& a) { return a.k_cache.ndim == kPackedRank; }

int64_t page_size(const tessera_append_kv_args& a) { return a.k_cache.shape[packed(a) ? 3 : 2]; }

void check_rows(const tessera_append_kv_args& a, Checker* c) {
  c->tensor("k", a.k, "[n, Hkv, D]", {3}, kFloats);
  if (has_values(a)) c->tensor("v", a.v, "[n, Hkv, Dv]", {3}, kFloats);
  c->tensor("slots", a.slots, "[n]", {1}, {TESSERA_I32});
  c->unit_feature("k", a.k);
  if (has_values(a)) {
    c->same_dtype("v", a.v, "k", a.k);
    c->unit_feature("v", a.v);
    c->axis("v", a.v, 0, a.k.shape[0], "n of k");
    c->axis("v", a.v, 1, a.k.shape[1], "Hkv of k");
  }
  c->axis("slots", a.slots, 0, a.k.shape[0], "n of k");
  c->require(!c->ok() || (a.k.shape[2] > 0 && (!has_values(a) || a.v.shape[2] > 0)),
             [] { return invalid("k and v need at least one feature"); });
}

void check_k_cache(const tessera_append_kv_args& a, Checker* c) {
  c->same_dtype("k_cache", a.k_cache, "k", a.k);
  if (packed(a)) {
    check_packed_keys("k_cache", a.k_cache, a.k.shape[2], "ceil(D/e), D of k", c);
  } else {
    c->axis("k_cache", a.k_cache, 3, a.k.shape[2], "D of k");
    c->unit_feature("k_cache", a.k_cache);
  }
  c->axis("k_cache", a.k_cache, 1, a.k.shape[1], "Hkv of k");
}

void check_v_cache(const tessera_append_kv_args& a, Checker* c) {
  c->same_dtype("v_cache", a.v_cache, "k", a.k);
  c->axis("v_cache", a.v_cache, 3, a.v.shape[2], "Dv of v");
  c->axis("v_cache", a.v_cache, 0, a.k_cache.shape[0], "P of k_cache");
  if (packed(a)) {
    check_packed_values("v_cache", a.v_cache, page_size(a), "ceil(ps/e), ps of k_cache", c);
  } else {
    c->axis("v_cache", a.v_cache, 2, page_size(a), "ps of k_cache");
    c->unit_feature("v_cache", a.v_cache);
  }
  c->axis("v_cache", a.v_cache, 1, a.k.shape[1], "Hkv of k");
}

void check_memory(const char* name, const tessera_tensor& cache, const tessera_append_kv_args& a, Checker* c) {
  c->output(name, cache);
  c->disjoint(name, cache, "k", a.k);
  c->disjoint(name, cache, "v", a.v);
  c->disjoint(name, cache, "slots", a.slots);
}

void check_caches(const tessera_append_kv_args& a, Checker* c) {
  const bool is_packed = packed(a);
  c->tensor("k_cache", a.k_cache, "[P, Hkv, ps, D] or [P, Hkv, ceil(D/e), ps, e]", {kRowMajorRank, kPackedRank},
            kFloats);
  if (has_values(a)) {
    c->tensor("v_cache", a.v_cache,
              is_packed ? "[P, Hkv, ceil(ps/e), Dv, e], as k_cache is packed" : "[P, Hkv, ps, Dv]",
              {is_packed ? kPackedRank : kRowMajorRank}, kFloats);
  }
  if (c->ok()) check_k_cache(a, c);
  if (c->ok() && has_values(a)) check_v_cache(a, c);
  check_memory("k_cache", a.k_cache, a, c);
  if (!has_values(a)) return;
  check_memory("v_cache", a.v_cache, a, c);
  c->disjoint("v_cache", a.v_cache, "k_cache", a.k_cache);
}

Rows rows_of(const tessera_tensor& t) {
  const int64_t item = dtype_size(t.dtype);
  return {static_cast<const char*>(t.data), t.stride[0] * item, t.stride[1] * item, t.shape[2] * item};
}

Cache cache_of(const tessera_tensor& t, Layout layout) {
  const int64_t item = dtype_size(t.dtype);
  return {static_cast<char*>(t.data), t.stride[0] * item, t.stride[1] * item, t.stride[2] * item, layout};
}

}  // namespace

Status check(const tessera_append_kv_args& a, Problem* p) {
  Checker c;
  c.require(given(a.v) == given(a.v_cache), [&] {
    return invalid(std::string(given(a.v) ? "v_cache" : "v") +
                   " is missing; expected both of v and v_cache, or neither");
  });
  check_rows(a, &c);
  if (c.ok()) check_caches(a, &c);
  if (!c.ok()) return c.take();
  const bool has_pairs = packed(a) && dtype_size(a.k.dtype) == 2;
  *p = {};
  p->k = rows_of(a.k);
  p->k_cache = cache_of(a.k_cache, packed(a) ? Layout::kUnits : Layout::kRows);
  p->has_values = has_values(a);
  if (p->has_values) {
    p->v = rows_of(a.v);
    p->v_cache = cache_of(a.v_cache, has_pairs ? Layout::kPairs : Layout::kRows);  // pairs of one are rows
  }
  p->slots = static_cast<const int32_t*>(a.slots.data);
  p->slot_stride = a.slots.stride[0];
  p->heads = a.k.shape[1];
  p->pages = a.k_cache.shape[0];
  p->page_size = page_size(a);
  p->rows = p->pages == 0 || p->page_size == 0 ? 0 : a.k.shape[0];
  p->row_elements = a.k.shape[2] + (p->has_values ? a.v.shape[2] : 0);
  return {};
}

}  // namespace tessera::append_kv
