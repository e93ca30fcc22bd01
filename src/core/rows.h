// Whose query rows are whose, where they are a batch [B, Q, ...], or packed [R, ...] with cu_seqlens_q, with the request of
// each row by name (token_to_req), or both.
#ifndef TESSERA_CORE_ROWS_H_
#define TESSERA_CORE_ROWS_H_

#include <stdint.h>

#include "core/sequences.h"

namespace tessera {

// Strides of a tensor whose first axes are the rows: [B, Q, ...], or packed [R, ...].
struct RowStrides {
  int64_t request, row;
};

// A strided int32 [B, Q] or [R].
struct RowInts {
  const int32_t* data;  // null: not given
  RowStrides stride;
};

struct RowForm {
  int64_t requests;  // B
  int64_t rows;      // R of all requests
  int64_t row_axis;  // Q of [B, Q, ...]; R if packed; at least 1
  Ints cu_q, token_to_req;
  Ints seq_lens_q;  // rows of each request that count
};

RowStrides row_strides(const tessera_tensor& t, bool packed);

struct Owner {
  int32_t request;  // kNoRequest: none
  int32_t index;    // among the rows of its request
};
constexpr int32_t kNoRequest = -1;

// Fills owners[0, rows). Rows outside the span that cu_seqlens_q gives a request are not its own; spans that decrease, leave
// the rows or begin before an earlier request's end are empty. Rows past seq_lens_q belong to nobody. counts[0, requests)
// becomes the number of rows of each request.
void find_owners(const RowForm& form, Owner* owners, int32_t* counts);

// Static, so that files built with ISA flags keep their own copy.
static inline int64_t row_offset(const RowForm& form, const RowStrides& s, int64_t row) {
  return row / form.row_axis * s.request + row % form.row_axis * s.row;
}

}  // namespace tessera

#endif  // TESSERA_CORE_ROWS_H_
