// The checks of what says whose rows and keys are whose. Not for kernels, which see core/rows.h and core/sequences.h.
#ifndef TESSERA_CORE_CHECK_ROWS_H_
#define TESSERA_CORE_CHECK_ROWS_H_

#include <cstdint>

#include "core/check.h"
#include "core/rows.h"
#include "core/sequences.h"

namespace tessera {

// An int32 tensor of `size` entries; `axes` and `what` as in Checker.
Ints check_ints(const char* name, const tessera_tensor& t, const char* axes, int64_t size, const char* what,
                Checker* c);
// Bounds of requests among packed rows or keys, [B + 1]; *requests becomes B.
Ints check_bounds(const char* name, const tessera_tensor& t, int64_t* requests, Checker* c);

// The rows of q, which has passed as a tensor and which messages call `name`. Their requests are yet to be told.
RowForm row_form(const char* name, const tessera_tensor& q, bool packed, Checker* c);

// What may come with them. All optional, but packed rows of more than one request need one of the first two.
struct RowArguments {
  const tessera_tensor& cu_seqlens_q;
  const tessera_tensor& token_to_req;
  const tessera_tensor& query_positions;
  const tessera_tensor& seq_lens_q;
};
// For rows of form->requests requests, of which `batch` says where the number is from, "B of block_table".
void check_rows(const char* name, const tessera_tensor& q, bool packed, const RowArguments& a, const char* batch,
                RowForm* form, RowInts* positions, Checker* c);

}  // namespace tessera

#endif  // TESSERA_CORE_CHECK_ROWS_H_
