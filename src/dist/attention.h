// Attention by several ranks, each of which makes the same call and gets the whole result.
//
// Query-parallel: every rank has all keys, and computes a share of the rows, cut by work; then they gather.
//     word >          rows             > word + rows of out and lse
// Context-parallel: every rank has some of the pages, attends over them, and partial results are merged: shards.h.
// `>` is an exchange.
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
