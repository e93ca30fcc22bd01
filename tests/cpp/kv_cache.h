// Calls that write a paged cache, and the packed layout of its pages, both spelled out element by element.
#ifndef TESSERA_TESTS_KV_CACHE_H_
#define TESSERA_TESTS_KV_CACHE_H_

#include <algorithm>
#include <cstring>
#include <ostream>
#include <vector>

#include "random.h"
#include "tensors.h"

namespace tessera::test {

// Elements that the packed layout keeps together.
inline int64_t packed_elements(tessera_dtype dtype) { return dtype == TESSERA_F32 ? 1 : 2; }

inline Shape packed_shape(tessera_dtype dtype, bool values, int64_t pages, int64_t heads, int64_t page_size,
                          int64_t dim) {
  const int64_t e = packed_elements(dtype);
  if (values) return {pages, heads, (page_size + e - 1) / e, dim, e};
  return {pages, heads, (dim + e - 1) / e, page_size, e};
}

// Dense in the last two axes; gaps between all others, with heads outside pages.
inline Shape packed_strides(const Shape& shape, bool gaps) {
  if (!gaps) return dense_strides(shape);
  Shape strides = gappy_strides({shape[0], shape[1], shape[2]}, shape[3] * shape[4] + 3);
  strides.insert(strides.end(), {shape[4], 1});
  return strides;
}

// Row-major index in a packed k or v of feature d of slot j.
inline int64_t packed_index(const tessera_tensor& t, bool values, int64_t page, int64_t head, int64_t j, int64_t d) {
  const int64_t e = t.shape[4];
  const int64_t outer = values ? j / e : d / e, middle = values ? d : j, last = values ? j % e : d % e;
  return (((page * t.shape[1] + head) * t.shape[2] + outer) * t.shape[3] + middle) * e + last;
}

// Pages [P, H, ps, D] in the packed layout; what belongs to no slot or feature is NaN.
inline TestTensor packed_layout(const TestTensor& rows, bool values, bool gaps = false) {
  const tessera_tensor& from = rows.view();
  const int64_t pages = from.shape[0], heads = from.shape[1], page_size = from.shape[2], dim = from.shape[3];
  const Shape shape = packed_shape(from.dtype, values, pages, heads, page_size, dim);
  TestTensor packed(from.dtype, shape, packed_strides(shape, gaps));
  for (int64_t i = 0; i < rows.elements(); ++i) {
    const int64_t row = i / dim;
    const int64_t page = row / page_size / heads;
    packed.set(packed_index(packed, values, page, row / page_size % heads, row % page_size, i % dim), rows.get(i));
  }
  return packed;
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_KV_CACHE_H_
