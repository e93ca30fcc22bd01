// Which rows and keys make up each request, for the oracle: read from the caller's tensors one number at a time.
#ifndef TESSERA_REFERENCE_REQUESTS_H_
#define TESSERA_REFERENCE_REQUESTS_H_

#include <cstdint>
#include <vector>

#include "reference/view.h"
#include "tessera/tessera.h"

namespace tessera::reference {

struct Request {
  int64_t first_row = 0;  // on the axis of packed rows, or b * Sq
  int64_t rows = 0;
  int64_t first_key = 0;  // on the axis of packed keys
  int64_t keys = 0;
  int64_t offset = 0;     // position of the first row
  int64_t page_size = 0;  // of paged keys
};

// q: [B, Sq, ...], or packed [total_q, ...]. k: [B, Sk, H, D], [total_k, H, D], [P, H, ps, D] or, with e elements kept
// together, [P, H, ceil(D/e), ps, e].
std::vector<Request> requests_of(const tessera_tensor& q, bool packed_q, const tessera_tensor& k,
                                 const tessera_sequences& sequences);

// Number of heads of k or v in whatever form.
int64_t heads_of(const tessera_tensor& k, const tessera_sequences& sequences);

// The features of every key of request b and one head; empty where the key's page does not exist. Of the last form of k
// with what fills up the last e.
std::vector<std::vector<double>> key_rows(const tessera_tensor& k, const tessera_sequences& sequences,
                                          const Request& request, int64_t b, int64_t head);
// The same of v, which has k's form; its last one is [P, H, ceil(ps/e), D, e].
std::vector<std::vector<double>> value_rows(const tessera_tensor& v, const tessera_sequences& sequences,
                                            const Request& request, int64_t b, int64_t head);

}  // namespace tessera::reference

#endif  // TESSERA_REFERENCE_REQUESTS_H_
