#include "reference/requests.h"

#include <algorithm>

namespace tessera::reference {
namespace {

bool is_paged(const tessera_sequences& s) { return s.page_table.ndim != 0; }
bool is_packed(const tessera_sequences& s) { return s.cu_seqlens_k.ndim != 0; }

int64_t integer(const View& v, int64_t i) { return static_cast<int64_t>(v.get(i)); }

using Rows = std::vector<std::vector<double>>;

// read(page, row) gives the features of a key: of paged keys in slot `row` of the page, else in row `row` of all.
template <class Read>
Rows rows_of(const tessera_tensor& t, const tessera_sequences& s, const Request& request, int64_t b, const Read& read) {
  const View table(s.page_table);
  Rows rows(static_cast<size_t>(request.keys));
  for (int64_t key = 0; key < request.keys; ++key) {
    int64_t page = 0;
    int64_t row = request.first_key + key;
    if (is_paged(s)) {
      page = integer(table, b * table.size(1) + key / request.page_size);
      if (page < 0 || page >= t.shape[0]) continue;
      row = key % request.page_size;
    } else if (!is_packed(s)) {
      row = b * t.shape[1] + key;
    }
    rows[static_cast<size_t>(key)] = read(page, row);
  }
  return rows;
}

// Features that lie one behind the other.
Rows row_major(const tessera_tensor& t, const tessera_sequences& s, const Request& request, int64_t b, int64_t head) {
  const View view(t);
  const int64_t heads = heads_of(t, s);
  const int64_t dim = view.last_size();
  return rows_of(t, s, request, b, [&](int64_t page, int64_t row) {
    const int64_t index = is_paged(s) ? (page * heads + head) * request.page_size + row : row * heads + head;
    return view.row(index * dim, dim);
  });
}

// place(slot, d) is the row-major place of a feature in what the tensor has for one page and head.
template <class Place>
Rows interleaved(const tessera_tensor& t, const tessera_sequences& s, const Request& request, int64_t b, int64_t head,
                 int64_t dim, const Place& place) {
  const View view(t);
  const int64_t page_elements = t.shape[2] * t.shape[3] * t.shape[4];
  return rows_of(t, s, request, b, [&](int64_t page, int64_t slot) {
    std::vector<double> row;
    for (int64_t d = 0; d < dim; ++d) {
      row.push_back(view.get((page * t.shape[1] + head) * page_elements + place(slot, d)));
    }
    return row;
  });
}

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
      r.page_size = k.shape[k.ndim == 5 ? 3 : 2];
      r.keys = std::max<int64_t>(integer(used, b), 0);
      if (s.page_table.shape[1] <= r.keys && r.page_size <= r.keys) {
        r.keys = std::min(r.keys, s.page_table.shape[1] * r.page_size);
      } else if (s.page_table.shape[1] == 0 || r.page_size == 0) {
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

Rows key_rows(const tessera_tensor& k, const tessera_sequences& s, const Request& request, int64_t b, int64_t head) {
  if (k.ndim != 5) return row_major(k, s, request, b, head);
  const int64_t slots = k.shape[3], e = k.shape[4];
  return interleaved(k, s, request, b, head, k.shape[2] * e,
                     [&](int64_t slot, int64_t d) { return (d / e * slots + slot) * e + d % e; });
}

Rows value_rows(const tessera_tensor& v, const tessera_sequences& s, const Request& request, int64_t b, int64_t head) {
  if (v.ndim != 5) return row_major(v, s, request, b, head);
  const int64_t dim = v.shape[3], e = v.shape[4];
  return interleaved(v, s, request, b, head, dim,
                     [&](int64_t slot, int64_t d) { return (slot / e * dim + d) * e + slot % e; });
}

}  // namespace tessera::reference
