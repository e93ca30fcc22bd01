// Selection by ranks that have some of the pages of index keys each: the ids of one process, on every rank.
//
// A rank scores the blocks it has and finds the best K of those. From these candidates, and their scores, the best K of all
// are chosen by the operator's own rule; blocks that are in whatever their score need none. A block among the best K of all is
// among the best K of its rank, so nothing is lost. A record holds, for each head, K scores and K ids.
#ifndef TESSERA_DIST_SELECT_H_
#define TESSERA_DIST_SELECT_H_

#include <memory>

#include "dist/shards.h"

namespace tessera::dist {

// Both refer to their arguments.
std::unique_ptr<ShardedWork> selection(const tessera_msa_select_args& args, const tessera_context& context);
std::unique_ptr<ShardedWork> selection(const tessera_qsa_select_args& args, const tessera_context& context);

}  // namespace tessera::dist

#endif  // TESSERA_DIST_SELECT_H_
