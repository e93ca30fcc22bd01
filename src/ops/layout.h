// Sizes of arrays that share one allocation. For plans; not for files built with ISA flags.
#ifndef TESSERA_OPS_LAYOUT_H_
#define TESSERA_OPS_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <new>

namespace tessera {

inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
inline int64_t round_up(int64_t a, int64_t unit) { return ceil_div(a, unit) * unit; }

// Lays arrays out one after the other on 64-byte boundaries. Sizes that overflow are a lack of memory.
class Layout {
 public:
  size_t add(int64_t count, int64_t bytes_each) {
    const size_t offset = bytes_;
    int64_t size = 0;
    int64_t end = 0;
    if (__builtin_mul_overflow(count, bytes_each, &size) || size > INT64_MAX - 64 ||
        __builtin_add_overflow(static_cast<int64_t>(bytes_), round_up(size, 64), &end)) {
      throw std::bad_alloc();
    }
    bytes_ = static_cast<size_t>(end);
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_OPS_LAYOUT_H_
