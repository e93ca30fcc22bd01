#include "ops/qsa_score/rows.h"

#include <algorithm>

namespace tessera::qsa_score {
namespace {

int32_t at(const RowInts& ints, const Problem& p, int64_t row) {
  return ints.data[row_offset(p.rows, ints.stride, row)];
}

void see_by_position(const Problem& p, int64_t r, const Owner& owner, Row* row) {
  const Visibility& v = p.visibility;
  int64_t position = owner.index;
  if (v.positions.data != nullptr) position = at(v.positions, p, r);
  if (v.seq_lens_k.data != nullptr) position = std::min<int64_t>(position, v.seq_lens_k[owner.request] - int64_t{1});
  position = std::max<int64_t>(position, -1);
  row->position = static_cast<int32_t>(position);
  row->end = static_cast<int32_t>(std::min((position + 1) / v.block, p.keys));
}

void see_interval(const Problem& p, int64_t begin, int64_t end, Row* row) {
  row->begin = static_cast<int32_t>(std::clamp<int64_t>(begin, 0, p.keys));
  row->end = static_cast<int32_t>(std::clamp<int64_t>(end, row->begin, p.keys));
}

Row see(const Problem& p, int64_t r, const Owner& owner) {
  const Visibility& v = p.visibility;
  Row row = {0, owner.request, -1, 0, 0};
  if (owner.request == kNoRequest) return row;
  if (v.block > 0) {
    see_by_position(p, r, owner, &row);
  } else if (v.row_starts.data != nullptr) {
    see_interval(p, v.row_starts[r], v.row_ends[r], &row);
  } else {
    see_interval(p, 0, at(v.context_lens, p, r), &row);
  }
  if (!p.selects) row.end = std::max(row.begin, static_cast<int32_t>(std::min<int64_t>(row.end, p.columns)));
  return row;
}

}  // namespace

// The owners lie behind the rows, and the rows of each request behind those.
int64_t table_entries(const Problem& p) {
  const int64_t owners = p.rows.rows * static_cast<int64_t>(sizeof(Owner));
  const int64_t counts = p.rows.requests * static_cast<int64_t>(sizeof(int32_t));
  return p.rows.rows + (owners + counts) / static_cast<int64_t>(sizeof(Row)) + 1;
}

void resolve(Row* table, Problem* p) {
  auto* const owners = reinterpret_cast<Owner*>(table + p->rows.rows);
  find_owners(p->rows, owners, reinterpret_cast<int32_t*>(owners + p->rows.rows));
  p->table = table;
  p->tiles = p->tile_rows = p->most_keys = 0;
  for (int64_t r = 0; r < p->rows.rows; ++r) {
    table[r] = see(*p, r, owners[r]);
    p->most_keys = std::max<int64_t>(p->most_keys, table[r].end);
    const bool fits = p->tiles > 0 && table[p->tiles - 1].tile + p->tile_tokens > r &&
                      table[table[p->tiles - 1].tile].request == table[r].request;
    if (!fits) table[p->tiles++].tile = r;
    p->tile_rows = std::max(p->tile_rows, r + 1 - table[p->tiles - 1].tile);
  }
}

}  // namespace tessera::qsa_score
