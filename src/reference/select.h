// The rule by which every selector of the oracle chooses blocks.
#ifndef TESSERA_REFERENCE_SELECT_H_
#define TESSERA_REFERENCE_SELECT_H_

#include <cstdint>
#include <vector>

#include "reference/reference.h"

namespace tessera::reference {

struct Rule {
  int64_t topk, block, local_blocks, init_blocks;
};

struct Score {
  double value = 0;
  double magnitude = 0;
};

// Blocks of `keys` keys.
int64_t blocks_of(int64_t keys, int64_t block);

// Of block n for a list whose queries have positions [first, last], among `keys` keys.
Tier tier_of(const Rule& rule, int64_t first, int64_t last, int64_t keys, int64_t n);

// Adds one list: tiers, scores, and the ids of the best K visible blocks, ascending, then -1.
void add_list(const Rule& rule, const std::vector<Tier>& tiers, const std::vector<Score>& scores, Selection* result);

}  // namespace tessera::reference

#endif  // TESSERA_REFERENCE_SELECT_H_
