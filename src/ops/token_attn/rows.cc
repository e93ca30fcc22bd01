#include "ops/token_attn/rows.h"

#include <algorithm>

#include "ops/token_attn/dense.h"
#include "ops/token_attn/tokens.h"

namespace tessera::token_attn {
namespace {

// Keys of request b, from *first on where keys are packed.
int64_t keys_of(const Problem& p, int64_t b, int64_t* first) {
  int64_t keys = p.keys;
  *first = 0;
  if (p.cu_k.data != nullptr) {
    const int64_t begin = p.cu_k[b];
    const int64_t end = p.cu_k[b + 1];
    const bool inside = begin >= 0 && begin <= end && end <= p.keys;
    *first = inside ? begin : 0;
    keys = inside ? end - begin : 0;
  }
  return p.seq_lens_k.data == nullptr ? keys : std::clamp<int64_t>(p.seq_lens_k[b], 0, keys);
}

Row row_of(const Problem& p, int64_t r, const Owner& owner, const int32_t* counts) {
  Row row = {0, owner.request, 0, 0, false};
  if (owner.request == kNoRequest) return row;
  const int64_t keys = keys_of(p, owner.request, &row.key);
  int64_t limit = keys;
  if (!p.physical) {
    const int64_t position = p.positions.data != nullptr ? p.positions.data[row_offset(p.rows, p.positions.stride, r)]
                                                         : keys - counts[owner.request] + owner.index;
    limit = std::clamp<int64_t>(position + 1, 0, keys);
  }
  row.limit = static_cast<int32_t>(limit);
  return row;
}

// Only where nothing is asked for that block attention does not do, like cutting lists into so many parts. Ids that do not
// count play no part, wherever they stand.
bool is_dense(const Problem& p, int64_t r, const Row& row) {
  if (p.physical || p.splits != 0 || row.count == 0 || row.count != row.limit) return false;
  TokenCursor cursor = tokens_of(p, r);
  for (int64_t id = 0; id < row.count; ++id) {
    advance(&cursor);
    if (cursor.id != id) return false;
  }
  return true;
}

}  // namespace

int64_t table_entries(const Problem& p) {
  const int64_t owners = p.rows.rows * static_cast<int64_t>(sizeof(Owner));
  const int64_t counts = p.rows.requests * static_cast<int64_t>(sizeof(int32_t));
  return p.rows.rows + (owners + counts) / static_cast<int64_t>(sizeof(Row)) + 1;
}

void resolve(Row* table, Problem* p) {
  auto* const owners = reinterpret_cast<Owner*>(table + p->rows.rows);
  auto* const counts = reinterpret_cast<int32_t*>(owners + p->rows.rows);
  find_owners(p->rows, owners, counts);
  p->table = table;
  p->longest = p->runs = p->densest = 0;
  for (int64_t r = 0; r < p->rows.rows; ++r) {
    table[r] = row_of(*p, r, owners[r], counts);
    table[r].count = static_cast<int32_t>(count_tokens(*p, r));
    table[r].dense = is_dense(*p, r, table[r]);
    p->runs += starts_run(*p, r) ? 1 : 0;
    int64_t* const most = table[r].dense ? &p->densest : &p->longest;
    *most = std::max<int64_t>(*most, table[r].count);
  }
}

}  // namespace tessera::token_attn
