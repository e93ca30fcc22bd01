#include "dist/partition.h"

#include <algorithm>
#include <string>

#include "core/check_rows.h"
#include "dist/hash.h"
#include "ops/layout.h"

namespace tessera::dist {
namespace {

Status check(const tessera_own_pages_args& a) {
  Checker c;
  c.require(a.size >= 1, [&] { return invalid("size is " + std::to_string(a.size) + "; expected at least 1"); });
  c.require(a.rank >= 0 && a.rank < a.size, [&] {
    return invalid("rank is " + std::to_string(a.rank) + "; expected one of " + std::to_string(a.size));
  });
  c.require(a.page_size >= 1,
            [&] { return invalid("page_size is " + std::to_string(a.page_size) + "; expected at least 1"); });
  c.tensor("page_table", a.page_table, "[B, max_pages]", {2}, {TESSERA_I32});
  c.output("page_table", a.page_table);
  if (!c.ok()) return c.take();
  check_ints("seqused_k", a.seqused_k, "[B]", a.page_table.shape[0], "B of page_table", &c);
  if (a.ownership == TESSERA_OWN_BY_PAGE) {
    c.tensor("owners", a.owners, "[B, max_pages]", {2}, {TESSERA_I32});
    for (int i = 0; i < 2; ++i) c.axis("owners", a.owners, i, a.page_table.shape[i], "as page_table");
    c.disjoint("page_table", a.page_table, "owners", a.owners);
  } else {
    c.require(a.ownership == TESSERA_OWN_CONTIGUOUS || a.ownership == TESSERA_OWN_STRIPED,
              [] { return invalid("ownership is neither contiguous nor striped nor by page"); });
    c.require(!given(a.owners), [] { return invalid("owners is for ownership by page"); });
  }
  c.disjoint("page_table", a.page_table, "seqused_k", a.seqused_k);
  return c.take();
}

int32_t& entry(const tessera_tensor& table, int64_t b, int64_t i) {
  return static_cast<int32_t*>(table.data)[b * table.stride[0] + i * table.stride[1]];
}

// The rank that has page i of the `pages` of request b.
int64_t owner(const tessera_own_pages_args& a, int64_t b, int64_t i, int64_t pages) {
  switch (a.ownership) {
    case TESSERA_OWN_CONTIGUOUS: return i * a.size / pages;
    case TESSERA_OWN_STRIPED: return (b + i) % a.size;  // requests of one page each have an owner each
    case TESSERA_OWN_BY_PAGE: break;
  }
  return entry(a.owners, b, i);
}

}  // namespace

void partition(std::span<const int64_t> work, std::span<int64_t> bounds) {
  const auto parts = static_cast<int64_t>(bounds.size()) - 1;
  int64_t sum = 0;
  for (int64_t w : work) sum += w;
  int64_t before = 0;
  int64_t item = 0;
  for (int64_t i = 0; i <= parts; ++i) {
    const int64_t share =
        static_cast<int64_t>(static_cast<double>(sum) * static_cast<double>(i) / static_cast<double>(parts));
    for (; item < static_cast<int64_t>(work.size()); ++item) {
      const int64_t w = work[static_cast<size_t>(item)];
      if (i < parts && before + (w + 1) / 2 > share) break;
      before += w;
    }
    bounds[static_cast<size_t>(i)] = i == 0 ? 0 : item;
  }
}

tessera_rows even_part(int64_t n, int64_t i, int64_t parts) {
  const int64_t first = n * i / parts;
  return {first, n * (i + 1) / parts - first};
}

Status own_pages(const tessera_own_pages_args& a, int64_t* pages) {
  if (Status s = check(a); !s.ok()) return s;
  if (pages == nullptr) return invalid("pages is null");
  *pages = 0;
  for (int64_t b = 0; b < a.page_table.shape[0]; ++b) {
    const int64_t keys = static_cast<const int32_t*>(a.seqused_k.data)[b * a.seqused_k.stride[0]];
    const int64_t used = std::clamp<int64_t>(ceil_div(keys, a.page_size), 0, a.page_table.shape[1]);
    for (int64_t i = 0; i < a.page_table.shape[1]; ++i) {
      const bool own = i < used && owner(a, b, i, used) == a.rank;
      entry(a.page_table, b, i) = own ? static_cast<int32_t>((*pages)++) : -1;
    }
  }
  return {};
}

void PageSums::add(const Paging& pages, int64_t b, int64_t keys) {
  const int64_t tokens = pages.page_size * pages.span;
  for (int64_t i = 0; i * tokens < keys; ++i) {
    const uint64_t number = hash(static_cast<uint64_t>(b) << 32 | static_cast<uint64_t>(i), 0);
    all += number;
    if (page_run(pages, b, i * tokens).page >= 0) own += number;
  }
}

}  // namespace tessera::dist
