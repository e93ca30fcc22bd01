// Writing to a paged cache, element by element. Bits are moved, not numbers: a NaN stays the NaN it is.
#include <cstring>
#include <initializer_list>

#include "reference/reference.h"
#include "reference/view.h"

namespace tessera {
namespace {

size_t item_size(const tessera_tensor& t) { return t.dtype == TESSERA_F32 ? 4 : 2; }

char* element(const tessera_tensor& t, std::initializer_list<int64_t> place) {
  int64_t offset = 0;
  const int64_t* stride = t.stride;
  for (int64_t index : place) offset += index * *stride++;
  return static_cast<char*>(t.data) + offset * static_cast<int64_t>(item_size(t));
}

// Where feature d of the key or value in slot j of a page lies.
char* key_place(const tessera_tensor& cache, int64_t page, int64_t head, int64_t j, int64_t d) {
  if (cache.ndim == 4) return element(cache, {page, head, j, d});
  const int64_t e = cache.shape[4];
  return element(cache, {page, head, d / e, j, d % e});
}
char* value_place(const tessera_tensor& cache, int64_t page, int64_t head, int64_t j, int64_t d) {
  if (cache.ndim == 4) return element(cache, {page, head, j, d});
  const int64_t e = cache.shape[4];
  return element(cache, {page, head, j / e, d, j % e});
}

}  // namespace

Status reference_append_kv(const tessera_append_kv_args& a) {
  const bool packed = a.k_cache.ndim == 5;
  const int64_t page_size = a.k_cache.shape[packed ? 3 : 2];
  const size_t item = item_size(a.k);
  const reference::View slots(a.slots);
  for (int64_t i = 0; i < a.k.shape[0]; ++i) {
    const auto slot = static_cast<int64_t>(slots.get(i));
    if (slot < 0 || slot >= a.k_cache.shape[0] * page_size) continue;
    const int64_t page = slot / page_size;
    const int64_t j = slot % page_size;
    for (int64_t head = 0; head < a.k.shape[1]; ++head) {
      for (int64_t d = 0; d < a.k.shape[2]; ++d) {
        std::memcpy(key_place(a.k_cache, page, head, j, d), element(a.k, {i, head, d}), item);
      }
      for (int64_t d = a.k.shape[2]; packed && d < a.k_cache.shape[2] * a.k_cache.shape[4]; ++d) {
        std::memset(key_place(a.k_cache, page, head, j, d), 0, item);
      }
      for (int64_t d = 0; a.v.ndim != 0 && d < a.v.shape[2]; ++d) {
        std::memcpy(value_place(a.v_cache, page, head, j, d), element(a.v, {i, head, d}), item);
      }
    }
  }
  return {};
}

}  // namespace tessera
