#include "reference/qsa_rows.h"

#include <algorithm>

#include "reference/view.h"

namespace tessera::reference {
namespace {

int64_t integer(const View& v, int64_t i) { return static_cast<int64_t>(v.get(i)); }

// Bounds that decrease, leave the rows or take those of an earlier request make the request empty. A row that
// token_to_req gives to another request still counts among the rows of the span.
void own_by_bounds(const RowOwners& from, std::vector<RowOwner>* owners) {
  const View cu(from.cu_seqlens_q), to_request(from.token_to_req);
  const auto rows = static_cast<int64_t>(owners->size());
  int64_t last_end = 0;
  for (int64_t b = 0; b < from.requests; ++b) {
    const int64_t begin = integer(cu, b), end = integer(cu, b + 1);
    if (begin < last_end || end < begin || end > rows) continue;
    last_end = end;
    for (int64_t t = begin; t < end; ++t) {
      if (to_request.given() && integer(to_request, t) != b) continue;
      (*owners)[static_cast<size_t>(t)] = {b, t - begin, end - begin};
    }
  }
}

void own_by_name(const RowOwners& from, std::vector<RowOwner>* owners) {
  const View to_request(from.token_to_req);
  std::vector<int64_t> counts(static_cast<size_t>(from.requests));
  for (size_t t = 0; t < owners->size(); ++t) {
    const int64_t b = integer(to_request, static_cast<int64_t>(t));
    if (b >= 0 && b < from.requests) (*owners)[t] = {b, counts[static_cast<size_t>(b)]++, 0};
  }
  for (RowOwner& owner : *owners) {
    if (owner.request >= 0) owner.rows = counts[static_cast<size_t>(owner.request)];
  }
}

}  // namespace

std::vector<RowOwner> row_owners(const RowOwners& from) {
  const int64_t each = from.packed ? from.q.shape[0] : from.q.shape[1];
  std::vector<RowOwner> owners(static_cast<size_t>(from.packed ? each : from.q.shape[0] * each));
  if (from.packed && from.cu_seqlens_q.ndim != 0) {
    own_by_bounds(from, &owners);
  } else if (from.packed && from.token_to_req.ndim != 0) {
    own_by_name(from, &owners);
  } else {
    for (size_t i = 0; i < owners.size(); ++i) {
      const auto t = static_cast<int64_t>(i);
      if (t / each < from.requests) owners[i] = {t / each, t % each, each};
    }
  }
  const View lens(from.seq_lens_q);
  for (RowOwner& owner : owners) {
    if (!lens.given() || owner.request < 0) continue;
    owner.rows = std::min(owner.rows, std::max<int64_t>(integer(lens, owner.request), 0));
    if (owner.index >= owner.rows) owner.request = -1;
  }
  return owners;
}

}  // namespace tessera::reference
