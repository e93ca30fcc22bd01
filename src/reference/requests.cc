#include "reference/requests.h"

#include <algorithm>

namespace tessera::reference {
namespace {

bool is_paged(const tessera_sequences& s) { return s.page_table.ndim != 0; }
bool is_packed(const tessera_sequences& s) { return s.cu_seqlens_k.ndim != 0; }

int64_t integer(const View& v, int64_t i) { return static_cast<int64_t>(v.get(i)); }

}  // namespace

std::vector<Request> requests_of(const tessera_tensor& q, bool packed_q, const tessera_tensor& k,
                                 const tessera_sequences& s) {
  const View cu_q(s.cu_seqlens_q), cu_k(s.cu_seqlens_k), used(s.seqused_k), q_offset(s.q_offset);
  const int64_t all_rows = packed_q ? q.shape[0] : q.shape[1];
  int64_t count = q.shape[0];
  if (packed_q) count = cu_q.given() ? cu_q.size(0) - 1 : all_rows / s.seqlen_q;
  std::vector<Request> requests(static_cast<size_t>(count));
  int64_t last_end = 0;
  for (int64_t b = 0; b < count; ++b) {
    Request& r = requests[static_cast<size_t>(b)];
    if (!packed_q) {
      r.first_row = b * all_rows;
      r.rows = all_rows;
    } else if (!cu_q.given()) {
      r.first_row = b * s.seqlen_q;
      r.rows = s.seqlen_q;
    } else if (integer(cu_q, b) >= last_end && integer(cu_q, b + 1) >= integer(cu_q, b) &&
               integer(cu_q, b + 1) <= all_rows) {
      r.first_row = integer(cu_q, b);
      r.rows = integer(cu_q, b + 1) - r.first_row;
      last_end = r.first_row + r.rows;
    }
    if (is_paged(s)) {
      r.keys = std::max<int64_t>(integer(used, b), 0);
      if (s.page_table.shape[1] <= r.keys && k.shape[2] <= r.keys) {
        r.keys = std::min(r.keys, s.page_table.shape[1] * k.shape[2]);
      } else if (s.page_table.shape[1] == 0 || k.shape[2] == 0) {
        r.keys = 0;
      }
    } else if (is_packed(s)) {
      const int64_t begin = integer(cu_k, b);
      const int64_t end = integer(cu_k, b + 1);
      if (begin >= 0 && begin <= end && end <= k.shape[0]) {
        r.first_key = begin;
        r.keys = end - begin;
      }
    } else {
      r.keys = k.shape[1];
    }
    r.offset = q_offset.given() ? integer(q_offset, b) : r.keys - r.rows;
  }
  return requests;
}

int64_t heads_of(const tessera_tensor& k, const tessera_sequences& s) {
  return is_paged(s) || is_packed(s) ? k.shape[1] : k.shape[2];
}

std::vector<std::vector<double>> key_rows(const tessera_tensor& k, const tessera_sequences& s, const Request& request,
                                          int64_t b, int64_t head) {
  const View view(k), table(s.page_table);
  const int64_t heads = heads_of(k, s);
  const int64_t dim = view.last_size();
  std::vector<std::vector<double>> rows(static_cast<size_t>(request.keys));
  for (int64_t key = 0; key < request.keys; ++key) {
    int64_t row = 0;
    if (is_paged(s)) {
      const int64_t page_size = k.shape[2];
      const int64_t page = integer(table, b * table.size(1) + key / page_size);
      if (page < 0 || page >= k.shape[0]) continue;
      row = (page * heads + head) * page_size + key % page_size;
    } else if (is_packed(s)) {
      row = (request.first_key + key) * heads + head;
    } else {
      row = (b * k.shape[1] + key) * heads + head;
    }
    rows[static_cast<size_t>(key)] = view.row(row * dim, dim);
  }
  return rows;
}

}  // namespace tessera::reference
