// Rows of keys and values and where they go in a paged cache: checked, and the same for both layouts.
#ifndef TESSERA_OPS_APPEND_KV_PROBLEM_H_
#define TESSERA_OPS_APPEND_KV_PROBLEM_H_

#include <stdint.h>

namespace tessera::append_kv {

// How the features of one slot lie in its page.
enum class Layout {
  kRows,   // one behind the other
  kUnits,  // 4 bytes of features, `step`, the next 4 bytes: k of the packed layout
  kPairs,  // with the neighbouring slot's, element by element: 16-bit v of the packed layout
};

// Strides in bytes.
struct Rows {
  const char* data;
  int64_t row, head;
  int64_t bytes;  // of a row's features
};

struct Cache {
  char* data;
  int64_t page, head;
  int64_t step;  // from a slot (kRows), a unit of features (kUnits) or a pair of slots (kPairs) to the next
  Layout layout;
};

struct Problem {
  Rows k, v;
  Cache k_cache, v_cache;
  bool has_values;  // else v and v_cache are not there
  const int32_t* slots;
  int64_t slot_stride;   // in elements
  int64_t rows;          // 0 if the cache has no slot
  int64_t heads;         // Hkv
  int64_t pages;         // P
  int64_t page_size;     // ps
  int64_t row_elements;  // D, and Dv
};

}  // namespace tessera::append_kv

#endif  // TESSERA_OPS_APPEND_KV_PROBLEM_H_
