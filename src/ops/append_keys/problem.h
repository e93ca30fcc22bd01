// New raw keys of several requests, and where the keys of the blocks that they complete go: checked, and the same for
// batches and packed rows, for dense and paged caches.
#ifndef TESSERA_OPS_APPEND_KEYS_PROBLEM_H_
#define TESSERA_OPS_APPEND_KEYS_PROBLEM_H_

#include <cstdint>

#include "core/sequences.h"
#include "ops/compress_keys/problem.h"

namespace tessera::append_keys {

// Raw keys of earlier tokens: token t of a request in row t % capacity of its slot.
struct Ring {
  compress_keys::Rows rows;
  int64_t slots;
  int64_t capacity;
  Ints slot;  // of each request; not given: its number
};

// Block g in slot g % page_size of page table[b][g / page_size]; without a table a request has a page of its own.
struct Cache {
  compress_keys::Rows rows;
  const int32_t* table;
  int64_t table_request, table_entry;  // strides
  int64_t pages;
  int64_t page_size;
  int64_t max_pages;
};

struct Problem {
  compress_keys::Rule rule;
  compress_keys::Rotation rotation;
  Sequences sequences;  // a request's offset is the number of its tokens before the call; keys play no part
  compress_keys::Rows raw;
  int64_t rows;  // of all requests
  Ring ring;
  Cache cache;
};

}  // namespace tessera::append_keys

#endif  // TESSERA_OPS_APPEND_KEYS_PROBLEM_H_
