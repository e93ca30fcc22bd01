// Results by rows, as ranks exchange them: one row's bytes behind the other.
#ifndef TESSERA_DIST_OUTPUTS_H_
#define TESSERA_DIST_OUTPUTS_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "dist/ranks.h"

namespace tessera::dist {

// A tensor [rows..., ...] with `row_axes` axes of rows: itself if its rows lie so, else memory of its own that is copied to
// it at the end.
class Rows {
 public:
  Rows(const tessera_tensor& t, int row_axes) : to_(t) {
    int64_t shape[TESSERA_MAX_DIMS] = {1};
    for (int i = 0; i < row_axes; ++i) shape[0] *= t.shape[i];
    for (int i = row_axes; i < t.ndim; ++i) shape[i - row_axes + 1] = t.shape[i];
    rows_ = tessera_dense(t.data, t.dtype, t.ndim - row_axes + 1, shape);
    row_bytes_ = rows_.stride[0] * dtype_size(t.dtype);
    const tessera_tensor dense = tessera_dense(t.data, t.dtype, t.ndim, t.shape);
    for (int i = 0; i < t.ndim; ++i) copies_ = copies_ || (t.shape[i] > 1 && t.stride[i] != dense.stride[i]);
    if (!copies_) return;
    own_.resize(static_cast<size_t>(shape[0] * row_bytes_));
    rows_.data = own_.data();
  }

  Rows(const Rows&) = delete;
  Rows(Rows&&) = default;

  const tessera_tensor& tensor() const { return rows_; }  // [R, ...], dense
  int64_t row_bytes() const { return row_bytes_; }

  template <class Part>
  Pending gather(const Ranks& ranks, const Part& part) const {
    return ranks.gather(rows_.data, part, row_bytes_);
  }
  void finish() const {
    const auto* from = static_cast<const char*>(rows_.data);
    if (copies_) copy(0, static_cast<char*>(to_.data), &from);
  }

 private:
  void copy(int axis, char* to, const char** from) const {
    const int64_t bytes = dtype_size(to_.dtype);
    if (axis == to_.ndim || axis == TESSERA_MAX_DIMS) {  // the latter never before the former, as compilers do not know
      std::memcpy(to, *from, static_cast<size_t>(bytes));
      *from += bytes;
      return;
    }
    for (int64_t i = 0; i < to_.shape[axis]; ++i) copy(axis + 1, to + i * to_.stride[axis] * bytes, from);
  }

  tessera_tensor to_, rows_;
  int64_t row_bytes_;
  bool copies_ = false;
  std::vector<char> own_;
};

}  // namespace tessera::dist

#endif  // TESSERA_DIST_OUTPUTS_H_
