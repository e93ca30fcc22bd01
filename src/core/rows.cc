#include "core/rows.h"

#include <algorithm>

namespace tessera {
namespace {

void own_spans(const RowForm& form, Owner* owners, int32_t* counts) {
  std::fill(owners, owners + form.rows, Owner{kNoRequest, 0});
  int64_t taken = 0;  // rows before this belong to earlier requests
  for (int64_t b = 0; b < form.requests; ++b) {
    const int64_t begin = form.cu_q[b];
    const int64_t end = form.cu_q[b + 1];
    const bool inside = begin >= taken && begin <= end && end <= form.rows;
    counts[b] = inside ? static_cast<int32_t>(end - begin) : 0;
    if (!inside) continue;
    for (int64_t r = begin; r < end; ++r) {
      const bool named = form.token_to_req.data == nullptr || form.token_to_req[r] == b;
      if (named) owners[r] = {static_cast<int32_t>(b), static_cast<int32_t>(r - begin)};
    }
    taken = end;
  }
}

void own_named(const RowForm& form, Owner* owners, int32_t* counts) {
  std::fill(counts, counts + form.requests, 0);
  for (int64_t r = 0; r < form.rows; ++r) {
    const int32_t b = form.token_to_req[r];
    const bool exists = b >= 0 && b < form.requests;
    owners[r] = exists ? Owner{b, counts[b]++} : Owner{kNoRequest, 0};
  }
}

}  // namespace

RowStrides row_strides(const tessera_tensor& t, bool packed) {
  return packed ? RowStrides{0, t.stride[0]} : RowStrides{t.stride[0], t.stride[1]};
}

void find_owners(const RowForm& form, Owner* owners, int32_t* counts) {
  if (form.cu_q.data != nullptr) {
    own_spans(form, owners, counts);
  } else if (form.token_to_req.data != nullptr) {
    own_named(form, owners, counts);
  } else {
    for (int64_t r = 0; r < form.rows; ++r) {
      owners[r] = {static_cast<int32_t>(r / form.row_axis), static_cast<int32_t>(r % form.row_axis)};
    }
    std::fill(counts, counts + form.requests, static_cast<int32_t>(form.row_axis));
  }
  if (form.seq_lens_q.data == nullptr) return;
  for (int64_t r = 0; r < form.rows; ++r) {
    if (owners[r].request != kNoRequest && owners[r].index >= form.seq_lens_q[owners[r].request]) {
      owners[r].request = kNoRequest;
    }
  }
  for (int64_t b = 0; b < form.requests; ++b) counts[b] = std::min(counts[b], std::max(form.seq_lens_q[b], 0));
}

}  // namespace tessera
