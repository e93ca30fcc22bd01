#include "core/check.h"

#include <algorithm>
#include <array>

namespace tessera {
namespace {

constexpr int64_t kMaxDim = 8192;  // a row of q or out in f32 must stay small beside the caches
// Elements and bytes of a tensor: more than any machine has, and so few that sums and products of sizes do not overflow.
constexpr int64_t kMost = int64_t{1} << 61;

template <class T, class F>
std::string alternatives(std::initializer_list<T> values, F&& text) {
  std::string all;
  for (const T& value : values) all += (all.empty() ? "" : " or ") + std::string(text(value));
  return all;
}

template <class T>
bool contains(std::initializer_list<T> values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// One more than the last byte's offset from data.
int64_t extent(const tessera_tensor& t) {
  int64_t elements = 1;
  for (int i = 0; i < t.ndim; ++i) elements += (t.shape[i] - 1) * t.stride[i];
  return elements * dtype_size(t.dtype);
}

// sum of stride[i] * x[i], 0 <= x[i] <= most[i].
struct Term {
  int64_t stride;
  int64_t most;
};

// Largest stride first. The standard library's stable sort allocates, and there are a dozen terms at most.
void sort_by_stride(Term* terms, int count) {
  for (int i = 1; i < count; ++i) {
    const Term term = terms[i];
    int place = i;
    for (; place > 0 && terms[place - 1].stride < term.stride; --place) terms[place] = terms[place - 1];
    terms[place] = term;
  }
}

// Whether the terms can add up to `target`. Strides descend; where each exceeds what the smaller ones can reach, as in
// any ordinary view, only one or two values of each x are tried. Out of steps means "perhaps", which is "yes" here.
bool reaches(const Term* terms, int count, int64_t target, int64_t reach, int* steps) {
  if (target < 0 || target > reach) return false;
  if (count == 0) return true;  // reach is 0, so target is
  if (--*steps < 0) return true;
  const Term term = terms[0];
  const int64_t rest = reach - term.stride * term.most;
  const int64_t low = target > rest ? (target - rest + term.stride - 1) / term.stride : 0;
  const int64_t high = std::min(term.most, target / term.stride);
  for (int64_t x = low; x <= high; ++x) {
    if (reaches(terms + 1, count - 1, target - x * term.stride, rest, steps)) return true;
  }
  return false;
}

bool share_memory(const tessera_tensor& a, const tessera_tensor& b) {
  const auto a_begin = reinterpret_cast<intptr_t>(a.data);
  const auto b_begin = reinterpret_cast<intptr_t>(b.data);
  const int64_t a_extent = extent(a);
  const int64_t b_extent = extent(b);
  if (a_begin + a_extent <= b_begin || b_begin + b_extent <= a_begin) return false;
  // Some byte of a is a byte of b: a_begin + sum(a) + i = b_begin + sum(b) + j. With b's indices counted from their ends
  // all terms are on one side and positive.
  std::array<Term, 2 * TESSERA_MAX_DIMS + 2> terms;
  int count = 0;
  int64_t reach = 0;
  const auto add = [&](int64_t stride, int64_t size) {
    if (stride == 0 || size <= 1) return;
    terms[count++] = {stride, size - 1};
    reach += stride * (size - 1);
  };
  for (const tessera_tensor* t : {&a, &b}) {
    for (int i = 0; i < t->ndim; ++i) add(t->stride[i] * dtype_size(t->dtype), t->shape[i]);
    add(1, dtype_size(t->dtype));
  }
  sort_by_stride(terms.data(), count);
  int steps = 100000;
  return reaches(terms.data(), count, b_begin + b_extent - 1 - a_begin, reach, &steps);
}

bool overlaps_itself(const tessera_tensor& t) {
  std::array<Term, TESSERA_MAX_DIMS> axes;
  int count = 0;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[i] > 1) axes[count++] = {t.stride[i], t.shape[i] - 1};
  }
  sort_by_stride(axes.data(), count);
  int64_t reach = 0;
  for (int i = count - 1; i >= 0; --i) {
    if (axes[i].stride <= reach) return true;
    reach += axes[i].stride * axes[i].most;
  }
  return false;
}

}  // namespace

const char* dtype_name(tessera_dtype dtype) {
  switch (dtype) {
    case TESSERA_BF16: return "bfloat16";
    case TESSERA_F16: return "float16";
    case TESSERA_F32: return "float32";
    case TESSERA_I32: return "int32";
    case TESSERA_I8: return "int8";
    case TESSERA_OTHER_DTYPE: break;
  }
  return "another dtype";
}

int64_t dtype_size(tessera_dtype dtype) {
  switch (dtype) {
    case TESSERA_I8: return 1;
    case TESSERA_BF16:
    case TESSERA_F16: return 2;
    case TESSERA_F32:
    case TESSERA_I32: return 4;
    case TESSERA_OTHER_DTYPE: break;
  }
  return 0;
}

std::string shape_text(const tessera_tensor& t) {
  std::string text = "[";
  for (int i = 0; i < t.ndim; ++i) text += (i == 0 ? "" : ", ") + std::to_string(t.shape[i]);
  return text + "]";
}

bool is_empty(const tessera_tensor& t) {
  return std::any_of(t.shape, t.shape + t.ndim, [](int64_t size) { return size == 0; });
}

tessera_tensor as_vector(tessera_tensor t) {
  if (t.ndim != 0 || t.data == nullptr) return t;
  t.ndim = 1;
  t.shape[0] = t.stride[0] = 1;
  return t;
}

void Checker::tensor(const char* name, const tessera_tensor& t, const char* axes, std::initializer_list<int> ranks,
                     std::initializer_list<tessera_dtype> dtypes) {
  if (!ok()) return;
  const auto who = [&] { return std::string(name) + " "; };
  require(given(t), [&] { return invalid(who() + axes + " is missing"); });
  require(!given(t) || (t.ndim > 0 && contains(ranks, static_cast<int>(t.ndim))),
          [&] { return invalid(who() + "has " + std::to_string(t.ndim) + " axes; expected " + axes); });
  require(contains(dtypes, t.dtype), [&] {
    return type_error(who() + "is " + dtype_name(t.dtype) + "; expected " + alternatives(dtypes, dtype_name));
  });
  if (!ok()) return;
  int64_t bytes = dtype_size(t.dtype);
  int64_t elements = 1;  // of a tensor of these sizes, were none of them 0
  for (int i = 0; i < t.ndim; ++i) {
    const auto where = [&] { return who() + "axis " + std::to_string(i) + " has "; };
    require(t.shape[i] >= 0, [&] { return invalid(where() + "negative size " + std::to_string(t.shape[i])); });
    require(t.stride[i] >= 0 || t.shape[i] <= 1, [&] {
      return invalid(where() + "negative stride " + std::to_string(t.stride[i]) + "; strides are at least 0");
    });
    if (!ok()) return;
    const int64_t size = std::max<int64_t>(t.shape[i], 1);
    const int64_t step = std::max<int64_t>({t.stride[i], -std::max(t.stride[i], -kMost), 1});
    int64_t span = 0;
    const bool fits = !__builtin_mul_overflow(size, step, &span) &&
                      !__builtin_mul_overflow(span, dtype_size(t.dtype), &span) &&
                      !__builtin_add_overflow(bytes, span, &bytes) && bytes <= kMost;
    require(fits, [&] {
      return invalid(where() + "size " + std::to_string(t.shape[i]) + " and stride " + std::to_string(t.stride[i]) +
                     ", beyond the address space");
    });
    const bool counted = !__builtin_mul_overflow(elements, size, &elements) && elements <= kMost;
    require(counted, [&] { return invalid(who() + shape_text(t) + " has more than 2^61 elements"); });
  }
  if (!ok() || is_empty(t)) return;
  require(t.data != nullptr, [&] { return invalid(who() + "has no data"); });
  require(reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_size(t.dtype)) == 0,
          [&] { return invalid(who() + "is not aligned to its " + dtype_name(t.dtype) + " elements"); });
}

void Checker::same_dtype(const char* name, const tessera_tensor& t, const char* other_name,
                         const tessera_tensor& other) {
  require(t.dtype == other.dtype, [&] {
    return type_error(std::string(name) + " is " + dtype_name(t.dtype) + " but " + other_name + " is " +
                      dtype_name(other.dtype) + "; they have one dtype");
  });
}

void Checker::axis(const char* name, const tessera_tensor& t, int axis, int64_t size, const char* what) {
  if (!ok()) return;
  require(t.shape[axis] == size, [&] {
    return invalid(std::string(name) + " " + shape_text(t) + " has size " + std::to_string(t.shape[axis]) +
                   " in axis " + std::to_string(axis) + "; expected " + std::to_string(size) + " (" + what + ")");
  });
}

void Checker::unit_feature(const char* name, const tessera_tensor& t) {
  if (!ok() || is_empty(t)) return;
  const int last = t.ndim - 1;
  require(t.shape[last] <= 1 || t.stride[last] == 1, [&] {
    return invalid(std::string(name) + " has stride " + std::to_string(t.stride[last]) +
                   " in its last axis; features lie next to each other (stride 1)");
  });
}

void Checker::per_row(const char* name, const tessera_tensor& t, const tessera_tensor& rows, const char* what,
                      tessera_dtype dtype) {
  const bool scalar = rows.ndim == 1;
  require(!scalar || t.ndim == 0,
          [&] { return invalid(std::string(name) + " has " + std::to_string(t.ndim) + " axes; expected none"); });
  tensor(name, scalar ? as_vector(t) : t, "[...]", {scalar ? 1 : rows.ndim - 1}, {dtype});
  for (int i = 0; i + 1 < rows.ndim; ++i) axis(name, t, i, rows.shape[i], what);
}

void Checker::head_dim(const char* name, int64_t dim) {
  require(dim <= kMaxDim, [&] {
    return not_implemented("head dims above " + std::to_string(kMaxDim) + " are not supported; " + name + " has " +
                           std::to_string(dim));
  });
}

void Checker::output(const char* name, const tessera_tensor& t) {
  if (!ok() || is_empty(t)) return;
  require(!overlaps_itself(t),
          [&] { return invalid(std::string(name) + " overlaps itself: two of its elements share memory"); });
}

void Checker::disjoint(const char* out_name, const tessera_tensor& out, const char* in_name, const tessera_tensor& in) {
  if (!ok() || !given(in) || !given(out) || is_empty(in) || is_empty(out)) return;
  require(!share_memory(out, in), [&] { return invalid(std::string(out_name) + " overlaps " + in_name); });
}

}  // namespace tessera
