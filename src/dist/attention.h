// Attention by several ranks, each of which makes the same call and gets the whole result.
//
// Query-parallel: every rank has all keys, and computes a share of the rows, cut by work; then they gather.
//     word >          rows             > word + rows of out and lse
// Context-parallel: every rank has some of the pages. It computes all rows over the keys it has, a piece of them at a time,
// and gives each rank a part of the piece to merge; merged rows are gathered. The merge is in the order of the ranks.
//     word >  piece   > word + partials    > merge   > rows of out and lse
// A piece of few bytes (decode) is given to all ranks in full, which merge it each: one exchange instead of two.
// `>` is an exchange. A word, and the exchange of a piece while the next is computed, is waited for as late as possible.
#ifndef TESSERA_DIST_ATTENTION_H_
#define TESSERA_DIST_ATTENTION_H_

#include "core/status.h"
#include "dist/call.h"
#include "dist/ranks.h"

namespace tessera::dist {

// A failure of any rank is the result of all.
Status attend(Call* call, const Ranks& ranks, const tessera_context& context);

}  // namespace tessera::dist

#endif  // TESSERA_DIST_ATTENTION_H_
