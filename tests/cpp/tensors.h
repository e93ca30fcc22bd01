// Tensors for tests: memory that ends where a guard page begins, any strides, every byte outside the view's elements
// (and every element not yet written) a sentinel that is a NaN in each float type and no block id.
#ifndef TESSERA_TESTS_TENSORS_H_
#define TESSERA_TESTS_TENSORS_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/number.h"
#include "random.h"
#include "reference/view.h"
#include "tessera/tessera.h"

namespace tessera::test {

using Shape = std::vector<int64_t>;

// `bytes` of memory between two pages that may not be touched; the end is flush with the second.
class Guarded {
 public:
  explicit Guarded(size_t bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inner = (bytes + page - 1) / page * page;
    mapped_ = inner + 2 * page;
    base_ =
        static_cast<std::byte*>(mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base_ == MAP_FAILED) std::abort();
    if (inner != 0 && mprotect(base_ + page, inner, PROT_READ | PROT_WRITE) != 0) std::abort();
    data_ = base_ + page + inner - bytes;
  }
  ~Guarded() { munmap(base_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* base_;
  size_t mapped_;
  std::byte* data_;
};

inline Shape dense_strides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

// The two axes before the last swapped in memory, odd gaps everywhere; the last axis has stride `last`.
inline Shape gappy_strides(const Shape& shape, int64_t last) {
  Shape strides(shape.size());
  std::vector<size_t> order(shape.size());  // innermost first
  std::iota(order.rbegin(), order.rend(), size_t{0});
  if (order.size() >= 3) std::swap(order[1], order[2]);
  int64_t stride = last;
  for (size_t axis : order) {
    strides[axis] = stride;
    stride = stride * std::max<int64_t>(shape[axis], 1) + 3;
  }
  return strides;
}

inline Shape broadcast_strides(Shape shape, size_t axis) {
  shape[axis] = 1;
  Shape strides = dense_strides(shape);
  strides[axis] = 0;
  return strides;
}

class TestTensor {
 public:
  TestTensor() : view_{} {}  // not given
  TestTensor(tessera_dtype dtype, const Shape& shape) : TestTensor(dtype, shape, dense_strides(shape)) {}
  TestTensor(tessera_dtype dtype, const Shape& shape, const Shape& strides) : view_{} {
    view_.dtype = dtype;
    view_.ndim = static_cast<int32_t>(shape.size());
    int64_t span = 1;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      view_.shape[axis] = shape[axis];
      view_.stride[axis] = strides[axis];
      span = shape[axis] == 0 || span == 0 ? 0 : span + (shape[axis] - 1) * strides[axis];
    }
    bytes_ = static_cast<size_t>(span) * item();
    memory_ = std::make_shared<Guarded>(bytes_);
    view_.data = memory_->data();
    clear();
  }

  const tessera_tensor& view() const { return view_; }
  operator const tessera_tensor&() const { return view_; }
  int64_t elements() const { return values().elements(); }
  reference::View values() const { return reference::View(view_); }

  // Elements by row-major index.
  double get(int64_t index) const { return values().get(index); }
  void set(int64_t index, double value) { values().set(index, value); }
  uint32_t bits(int64_t index) const {
    uint32_t bits = 0;
    std::memcpy(&bits, at(index), item());
    return bits;
  }
  std::vector<uint32_t> all_bits() const {
    std::vector<uint32_t> all(static_cast<size_t>(elements()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = bits(static_cast<int64_t>(i));
    return all;
  }

  void fill(double value) {
    for (int64_t i = 0; i < elements(); ++i) set(i, value);
  }
  void fill_normal(Random& random) {
    for (int64_t i = 0; i < elements(); ++i) set_float(i, random.normal());
  }
  // Every byte back to the sentinel.
  void clear() {
    for (size_t i = 0; i < bytes_; i += item()) std::memcpy(memory_->data() + i, sentinel(), item());
  }
  bool written(int64_t index) const { return std::memcmp(at(index), sentinel(), item()) != 0; }
  bool all_written() const {
    for (int64_t i = 0; i < elements(); ++i) {
      if (!written(i)) return false;
    }
    return true;
  }
  bool untouched() const {
    for (size_t i = 0; i < bytes_; i += item()) {
      if (std::memcmp(memory_->data() + i, sentinel(), item()) != 0) return false;
    }
    return true;
  }
  // No byte outside the view's elements has been written.
  bool gaps_untouched() const {
    std::vector<bool> inside(bytes_ / item());
    for (int64_t i = 0; i < elements(); ++i) inside[static_cast<size_t>(at(i) - memory_->data()) / item()] = true;
    for (size_t i = 0; i < inside.size(); ++i) {
      if (!inside[i] && std::memcmp(memory_->data() + i * item(), sentinel(), item()) != 0) return false;
    }
    return true;
  }

  // A tensor of its own with the same contents and strides.
  TestTensor clone() const {
    TestTensor copy = *this;
    if (memory_ == nullptr) return copy;
    copy.memory_ = std::make_shared<Guarded>(bytes_);
    copy.view_.data = copy.memory_->data();
    if (bytes_ != 0) std::memcpy(copy.memory_->data(), memory_->data(), bytes_);
    return copy;
  }

 private:
  size_t item() const { return static_cast<size_t>(dtype_size(view_.dtype)); }
  static const void* sentinel() {
    static const uint32_t pattern = 0x7fa57fa5;
    return &pattern;
  }
  std::byte* at(int64_t index) const {
    int64_t offset = 0;
    for (int axis = view_.ndim - 1; axis >= 0; --axis) {
      offset += index % view_.shape[axis] * view_.stride[axis];
      index /= view_.shape[axis];
    }
    return memory_->data() + static_cast<size_t>(offset) * item();
  }
  void set_float(int64_t index, float value) {
    const bf16 b = from_float<bf16>(value);
    const f16 h = from_float<f16>(value);
    const void* from = view_.dtype == TESSERA_BF16 ? static_cast<const void*>(&b) : &h;
    std::memcpy(at(index), view_.dtype == TESSERA_F32 ? &value : from, item());
  }

  tessera_tensor view_;
  size_t bytes_ = 0;
  std::shared_ptr<Guarded> memory_;
};

inline TestTensor ints(const std::vector<int64_t>& values, int64_t stride = 1) {
  TestTensor t(TESSERA_I32, {static_cast<int64_t>(values.size())}, {stride});
  for (size_t i = 0; i < values.size(); ++i) t.set(static_cast<int64_t>(i), static_cast<double>(values[i]));
  return t;
}

inline tessera_tensor view_of(const tessera_tensor& t, const Shape& shape, const Shape& strides) {
  tessera_tensor view = t;
  view.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape);
  std::copy(strides.begin(), strides.end(), view.stride);
  return view;
}

inline const char* dtype_name(tessera_dtype dtype) {
  return dtype == TESSERA_BF16 ? "bf16" : dtype == TESSERA_F16 ? "f16" : "f32";
}
inline constexpr tessera_dtype kFloats[] = {TESSERA_BF16, TESSERA_F16, TESSERA_F32};

}  // namespace tessera::test

#endif  // TESSERA_TESTS_TENSORS_H_
