// The best K blocks by scores that are given.
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/reference.h"
#include "reference/select.h"
#include "reference/view.h"

namespace tessera {
namespace reference {

Selection topk_blocks(const tessera_topk_blocks_args& args) {
  const View scores(args.scores);
  const int64_t blocks = scores.last_size();
  const Rule rule = {View(args.indices).last_size(), 1, 0, 0};
  const int64_t lists = rule.topk == 0 ? 0 : View(args.indices).elements() / rule.topk;
  Selection result;
  for (int64_t list = 0; list < lists; ++list) {
    std::vector<Tier> tiers;
    std::vector<Score> values;
    for (double score : scores.row(list * blocks, blocks)) {
      tiers.push_back(score == -std::numeric_limits<double>::infinity() ? kInvisible : kByScore);
      values.push_back({score, 0});
    }
    add_list(rule, tiers, values, &result);
  }
  return result;
}

}  // namespace reference

Status reference_topk_blocks(const tessera_topk_blocks_args& args) {
  const std::vector<int32_t> ids = reference::topk_blocks(args).ids;
  reference::View(args.indices).set_values(std::vector<double>(ids.begin(), ids.end()));
  return {};
}

}  // namespace tessera
