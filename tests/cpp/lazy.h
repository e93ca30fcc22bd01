// Tensors larger than memory, of which a test touches little.
#ifndef TESSERA_TESTS_LAZY_H_
#define TESSERA_TESTS_LAZY_H_

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tensors.h"

namespace tessera::test {

// Address space of which only the pages that are touched take memory.
struct Lazy {
  explicit Lazy(size_t n) : bytes(n) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Lazy() {
    if (data != MAP_FAILED) munmap(data, bytes);
  }
  Lazy(const Lazy&) = delete;
  Lazy& operator=(const Lazy&) = delete;

  size_t bytes;
  void* data;
};

inline tessera_tensor dense(const Lazy& memory, tessera_dtype dtype, const Shape& shape) {
  tessera_tensor t = {memory.data, dtype, static_cast<int32_t>(shape.size()), {}, {}};
  const Shape strides = dense_strides(shape);
  std::copy(shape.begin(), shape.end(), t.shape);
  std::copy(strides.begin(), strides.end(), t.stride);
  return t;
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_LAZY_H_
