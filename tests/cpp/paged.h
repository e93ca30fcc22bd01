// Keys in pages: the same rows as a batch of them, with poison wherever no key lies.
#ifndef TESSERA_TESTS_PAGED_H_
#define TESSERA_TESTS_PAGED_H_

#include <algorithm>
#include <climits>
#include <numeric>
#include <vector>

#include "random.h"
#include "tensors.h"

namespace tessera::test {

// k [P, H, ps, D], the page_table and seqused_k that go with it.
struct Paged {
  TestTensor k, page_table, seqused_k;

  int64_t page_size() const { return k.view().shape[2]; }
  int64_t max_pages() const { return page_table.view().shape[1]; }
  int64_t entry(int64_t b, int64_t index) const { return b * max_pages() + index; }
  int64_t page(int64_t b, int64_t index) const { return static_cast<int64_t>(page_table.get(entry(b, index))); }
  // Row-major index of the first feature of a key.
  int64_t at(int64_t b, int64_t head, int64_t key) const {
    const tessera_tensor& t = k.view();
    return ((page(b, key / page_size()) * t.shape[1] + head) * page_size() + key % page_size()) * t.shape[3];
  }
};

// Keys [0, lengths[b]) of each request of a batch [B, Sk, H, D], in pages in random order. Table entries without keys are
// invalid, slots without keys hold `poison`.
inline Paged in_pages(const TestTensor& k, int64_t page_size, const std::vector<int64_t>& lengths, double poison,
                      bool gaps = false) {
  const int64_t* const shape = k.view().shape;
  const int64_t requests = shape[0], keys = shape[1], heads = shape[2], dim = shape[3];
  const int64_t max_pages = (keys + page_size - 1) / page_size + 1;
  const int64_t pages = requests * max_pages + 2;
  Random random(static_cast<uint64_t>(page_size));
  std::vector<int64_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[static_cast<size_t>(random.below(i))]);

  const Shape page_shape = {pages, heads, page_size, dim};
  const Shape table_shape = {requests, max_pages};
  Paged paged;
  paged.k = TestTensor(k.view().dtype, page_shape, gaps ? gappy_strides(page_shape, 1) : dense_strides(page_shape));
  paged.k.fill(poison);
  paged.page_table =
      TestTensor(TESSERA_I32, table_shape, gaps ? gappy_strides(table_shape, 2) : dense_strides(table_shape));
  paged.seqused_k = TestTensor(TESSERA_I32, {requests}, {gaps ? 3 : 1});
  const int64_t invalid[] = {-1, INT_MIN, INT_MAX, pages};
  size_t next = 0;
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t length = lengths[static_cast<size_t>(b)];
    paged.seqused_k.set(b, static_cast<double>(length));
    for (int64_t i = 0; i < max_pages; ++i) {
      const bool used = i * page_size < length;
      paged.page_table.set(paged.entry(b, i), static_cast<double>(used ? order[next++] : random.pick(invalid)));
    }
    for (int64_t key = 0; key < length; ++key) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t d = 0; d < dim; ++d) {
          paged.k.set(paged.at(b, head, key) + d, k.get(((b * keys + key) * heads + head) * dim + d));
        }
      }
    }
  }
  return paged;
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_PAGED_H_
