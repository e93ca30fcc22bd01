#include "ops/append_kv/kernel.h"

#include <algorithm>
#include <cstring>

namespace tessera::append_kv {
namespace {

constexpr int64_t kUnit = 4;           // bytes
constexpr int64_t kLine = 64 / kUnit;  // slots whose units fill a cache line
constexpr int64_t kTile = 4;           // units of so many rows make a vector of the baseline

using Units = uint32_t __attribute__((vector_size(kTile * kUnit)));

// Rows [row, row + count) go to slots [slot, slot + count) of a page.
struct Run {
  int64_t row, count, page, slot;
};

int64_t slot_of(const Problem& p, int64_t row) { return p.slots[row * p.slot_stride]; }

// The longest run that begins at `row`; of page -1, if the row has no slot.
Run run_at(const Problem& p, int64_t row) {
  const int64_t first = slot_of(p, row);
  if (first < 0 || first / p.page_size >= p.pages) return {row, 1, -1, 0};
  Run run = {row, 1, first / p.page_size, first % p.page_size};
  while (row + run.count < p.rows && run.slot + run.count < p.page_size &&
         slot_of(p, row + run.count) == first + run.count) {
    ++run.count;
  }
  return run;
}

void put_rows(const Rows& rows, const char* from, const Run& run, const Cache& cache, char* page) {
  char* to = page + run.slot * cache.step;
  for (int64_t i = 0; i < run.count; ++i) {
    std::memcpy(to + i * cache.step, from + i * rows.row, static_cast<size_t>(rows.bytes));
  }
}

Units load(const char* from) {
  Units units;
  std::memcpy(&units, from, sizeof units);
  return units;
}
void store(Units units, char* to) { std::memcpy(to, &units, sizeof units); }

// Turns kTile units of kTile rows.
void turn(const char* from, int64_t row, char* to, int64_t step) {
  const Units a = load(from), b = load(from + row), c = load(from + 2 * row), d = load(from + 3 * row);
  const Units ab01 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab23 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Units cd01 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd23 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  store(__builtin_shufflevector(ab01, cd01, 0, 1, 4, 5), to);
  store(__builtin_shufflevector(ab01, cd01, 2, 3, 6, 7), to + step);
  store(__builtin_shufflevector(ab23, cd23, 0, 1, 4, 5), to + 2 * step);
  store(__builtin_shufflevector(ab23, cd23, 2, 3, 6, 7), to + 3 * step);
}

void turn_part(const char* from, int64_t row, char* to, int64_t step, int64_t units, int64_t rows) {
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(to + unit * step + i * kUnit, from + i * row + unit * kUnit, kUnit);
    }
  }
}

// Of an odd number of 16-bit features the last one shares its unit with a zero.
void put_units(const Rows& rows, const char* from, const Run& run, const Cache& cache, char* page) {
  const int64_t whole = rows.bytes / kUnit;
  const auto rest = static_cast<size_t>(rows.bytes % kUnit);
  for (int64_t i = 0; i < run.count;) {
    const int64_t slot = run.slot + i;
    const int64_t n = std::min(kLine - slot % kLine, run.count - i);
    for (int64_t unit = 0; unit < whole; unit += kTile) {
      for (int64_t k = 0; k < n; k += kTile) {
        const char* const tile = from + (i + k) * rows.row + unit * kUnit;
        char* const to = page + unit * cache.step + (slot + k) * kUnit;
        if (unit + kTile <= whole && k + kTile <= n) {
          turn(tile, rows.row, to, cache.step);
        } else {
          turn_part(tile, rows.row, to, cache.step, std::min(kTile, whole - unit), std::min(kTile, n - k));
        }
      }
    }
    for (int64_t k = 0; rest != 0 && k < n; ++k) {
      char last[kUnit] = {};
      std::memcpy(last, from + (i + k) * rows.row + whole * kUnit, rest);
      std::memcpy(page + whole * cache.step + (slot + k) * kUnit, last, kUnit);
    }
    i += n;
  }
}

void put_pairs(const Rows& rows, const char* from, const Run& run, const Cache& cache, char* page) {
  const int64_t dim = rows.bytes / 2;
  for (int64_t i = 0; i < run.count;) {
    const int64_t slot = run.slot + i;
    auto* __restrict const to = reinterpret_cast<uint16_t*>(page + slot / 2 * cache.step);
    const auto* const row = reinterpret_cast<const uint16_t*>(from + i * rows.row);
    if (slot % 2 == 0 && i + 1 < run.count) {
      const auto* const next = reinterpret_cast<const uint16_t*>(from + (i + 1) * rows.row);
      for (int64_t d = 0; d < dim; ++d) {
        to[2 * d] = row[d];
        to[2 * d + 1] = next[d];
      }
      i += 2;
    } else {
      for (int64_t d = 0; d < dim; ++d) to[2 * d + slot % 2] = row[d];
      ++i;
    }
  }
}

void put(const Rows& rows, const Cache& cache, const Run& run, int64_t head) {
  const char* const from = rows.data + run.row * rows.row + head * rows.head;
  char* const page = cache.data + run.page * cache.page + head * cache.head;
  switch (cache.layout) {
    case Layout::kRows: return put_rows(rows, from, run, cache, page);
    case Layout::kUnits: return put_units(rows, from, run, cache, page);
    case Layout::kPairs: return put_pairs(rows, from, run, cache, page);
  }
}

}  // namespace

void append(const Problem& p, int64_t head, int64_t share, int64_t shares) {
  for (int64_t row = 0; row < p.rows;) {
    const Run run = run_at(p, row);
    if (run.page >= 0 && run.page % shares == share) {
      put(p.k, p.k_cache, run, head);
      if (p.has_values) put(p.v, p.v_cache, run, head);
    }
    row += run.count;
  }
}

}  // namespace tessera::append_kv
