// Whose query rows are whose in the operators of QSA, for the oracle.
#ifndef TESSERA_REFERENCE_QSA_ROWS_H_
#define TESSERA_REFERENCE_QSA_ROWS_H_

#include <cstdint>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::reference {

// How many rows a request has is what an inferred position counts from.
struct RowOwner {
  int64_t request = -1;  // -1: nobody
  int64_t index = 0;     // among the rows of its request
  int64_t rows = 0;      // of its request
};

// What says so: q is [B, Q, ...], or packed rows [total_q, ...] with any of the three below.
struct RowOwners {
  bool packed;
  const tessera_tensor& q;
  int64_t requests;
  const tessera_tensor& cu_seqlens_q;
  const tessera_tensor& token_to_req;
  const tessera_tensor& seq_lens_q;  // rows past it are nobody's, packed or not
};
std::vector<RowOwner> row_owners(const RowOwners& from);

}  // namespace tessera::reference

#endif  // TESSERA_REFERENCE_QSA_ROWS_H_
