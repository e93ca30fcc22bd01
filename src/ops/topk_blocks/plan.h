// How a checked call is cut into tasks: rows, and few long rows into chunks, whose best are merged.
#ifndef TESSERA_OPS_TOPK_BLOCKS_PLAN_H_
#define TESSERA_OPS_TOPK_BLOCKS_PLAN_H_

#include <stddef.h>
#include <stdint.h>

#include "ops/topk_blocks/problem.h"

namespace tessera::topk_blocks {

struct Kernel;

// Scores that go through a list at a time; copied first, where they are not side by side.
constexpr int kRun = 512;
// Where there are no more rows than this, each is cut into chunks of at least so many scores.
constexpr int64_t kSplitRows = 32;
constexpr int64_t kChunk = int64_t{1} << 16;
// And no more chunks than whose lists take so much.
constexpr int64_t kSplitBytes = int64_t{16} << 20;

struct Plan {
  const Kernel* kernel;
  int64_t chunk;     // scores
  int64_t chunks;    // per row
  int64_t capacity;  // entries of a list of tile/best.h
  int64_t list_bytes;
  // Offsets in the workspace, in bytes.
  size_t lists;    // [rows][chunks], where there are more chunks than one
  size_t workers;  // [workers] lists
  size_t bytes;
};

struct Kernel {
  // Makes `list` the best of scores [begin, end) of a row.
  void (*collect)(const Problem&, const Plan&, int64_t row, int64_t begin, int64_t end, char* list);
  // Writes a row's indices from the lists of its chunks.
  void (*write)(const Problem&, const Plan&, int64_t row, char* lists, char* merged);
  int lanes;
};

Plan make_plan(const Problem& p, const Kernel& kernel, bool whole, int workers);

}  // namespace tessera::topk_blocks

#endif  // TESSERA_OPS_TOPK_BLOCKS_PLAN_H_
