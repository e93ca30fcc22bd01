#include "ops/qsa_score/rows.h"

#include <algorithm>

namespace tessera::qsa_score {
namespace {

constexpr int32_t kNone = -1;

int32_t at(const RowInts& ints, const Problem& p, int64_t row) { return ints.data[offset(p, ints.stride, row)]; }

// Rows [begin, end) of request b on the axis of packed rows; broken ones are empty.
struct Span {
  int64_t begin, end;
};
Span span_of(const Problem& p, int64_t b, int64_t taken) {
  const Ints& cu = p.visibility.cu_q;
  const Span span = {cu[b], cu[b + 1]};
  return span.begin >= taken && span.begin <= span.end && span.end <= p.rows ? span : Span{taken, taken};
}

// Request and index within it of every row, into `request` and `position`; kNone: of no request.
void assign_requests(Row* table, const Problem& p) {
  const Visibility& v = p.visibility;
  if (v.token_to_req.data == nullptr && v.cu_q.data == nullptr) {
    for (int64_t r = 0; r < p.rows; ++r) {
      table[r].request = static_cast<int32_t>(r / p.row_axis);
      table[r].position = static_cast<int32_t>(r % p.row_axis);
    }
    return;
  }
  for (int64_t r = 0; r < p.rows; ++r) table[r].request = table[r].position = kNone;
  if (v.token_to_req.data == nullptr) {
    int64_t taken = 0;
    for (int64_t b = 0; b < p.requests; ++b) {
      const Span span = span_of(p, b, taken);
      for (int64_t r = span.begin; r < span.end; ++r) {
        table[r].request = static_cast<int32_t>(b);
        table[r].position = static_cast<int32_t>(r - span.begin);
      }
      taken = span.end;
    }
    return;
  }
  Row* const seen = table + p.rows;  // of each request, the rows so far
  for (int64_t b = 0; b < p.requests; ++b) seen[b].tile = 0;
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t b = v.token_to_req[r];
    if (b < 0 || b >= p.requests) continue;
    const bool listed = v.cu_q.data != nullptr;
    if (listed && (r < v.cu_q[b] || r >= v.cu_q[b + 1])) continue;
    table[r].request = static_cast<int32_t>(b);
    table[r].position = static_cast<int32_t>(listed ? r - v.cu_q[b] : seen[b].tile++);
  }
}

// From a row's index within its request to its position, and to the keys that it sees.
void see_by_position(const Problem& p, int64_t r, Row* row) {
  const Visibility& v = p.visibility;
  const int64_t b = row->request;
  int64_t position = row->position;
  if (b == kNone || (v.seq_lens_q.data != nullptr && position >= v.seq_lens_q[b])) {
    *row = {0, kNone, kNone, 0, 0};
    return;
  }
  if (v.positions.data != nullptr) position = at(v.positions, p, r);
  if (v.seq_lens_k.data != nullptr) position = std::min<int64_t>(position, v.seq_lens_k[b] - int64_t{1});
  position = std::max<int64_t>(position, kNone);
  row->position = static_cast<int32_t>(position);
  row->begin = 0;
  row->end = static_cast<int32_t>(std::min((position + 1) / v.block, p.keys));
}

void see_interval(const Problem& p, int64_t begin, int64_t end, Row* row) {
  row->begin = static_cast<int32_t>(std::clamp<int64_t>(begin, 0, p.keys));
  row->end = static_cast<int32_t>(std::clamp<int64_t>(end, row->begin, p.keys));
}

}  // namespace

int64_t table_entries(const Problem& p) {
  return p.rows + (p.visibility.token_to_req.data != nullptr ? p.requests : 0);
}

void resolve(Row* table, Problem* p) {
  const Visibility& v = p->visibility;
  assign_requests(table, *p);
  p->table = table;
  p->tiles = p->tile_rows = 0;
  p->most_keys = 0;
  for (int64_t r = 0; r < p->rows; ++r) {
    Row* const row = table + r;
    if (v.block > 0) {
      see_by_position(*p, r, row);
    } else if (v.row_starts.data != nullptr) {
      see_interval(*p, v.row_starts[r], v.row_ends[r], row);
    } else {
      see_interval(*p, 0, at(v.context_lens, *p, r), row);
    }
    if (!p->selects)
      row->end = static_cast<int32_t>(std::min<int64_t>(row->end, std::max<int64_t>(row->begin, p->columns)));
    p->most_keys = std::max<int64_t>(p->most_keys, row->end);
    const bool fits = p->tiles > 0 && table[p->tiles - 1].tile + p->tile_tokens > r &&
                      table[table[p->tiles - 1].tile].request == row->request;
    if (!fits) table[p->tiles++].tile = r;
    p->tile_rows = std::max(p->tile_rows, r + 1 - table[p->tiles - 1].tile);
  }
}

}  // namespace tessera::qsa_score
