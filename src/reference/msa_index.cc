// The indexer of MSA: block scores as the maximum over a block's visible keys, and the best K blocks by them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/reference.h"
#include "reference/requests.h"
#include "reference/select.h"
#include "reference/view.h"

namespace tessera {
namespace reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Index {
  explicit Index(const tessera_msa_index& args)
      : q(args.q),
        k(args.k),
        sequences(args.sequences),
        packed(q.rank() == 3),
        requests(requests_of(args.q, packed, args.k, args.sequences)),
        heads(q.size(q.rank() - 2)),
        key_heads(heads_of(args.k, args.sequences)),
        block(args.block_size == 0 ? 128 : args.block_size),
        reduce(args.reduce_heads != 0) {}

  int64_t outputs() const { return reduce ? 1 : heads; }
  // Of q, each with its heads.
  int64_t rows() const { return packed ? q.size(0) : q.size(0) * q.size(1); }
  int64_t blocks() const {
    int64_t most = 0;
    for (const Request& r : requests) most = std::max(most, blocks_of(r.keys, block));
    return most;
  }
  // Where results have the list of this row and head: [B, heads, Sq] or [heads, total_q].
  size_t place(int64_t row, int64_t head) const {
    const int64_t tokens = packed ? q.size(0) : q.size(1);
    return static_cast<size_t>((row / tokens * outputs() + head) * tokens + row % tokens);
  }

  View q;
  tessera_tensor k;
  tessera_sequences sequences;
  bool packed;
  std::vector<Request> requests;
  int64_t heads, key_heads, block;
  bool reduce;
};

// The larger of the two; NaN if one is.
double larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }

// Scores of all blocks for one row and head, added to what other heads gave.
void add_scores(const Index& index, const std::vector<double>& q, const std::vector<std::vector<double>>& keys,
                int64_t position, std::vector<Score>* scores) {
  const int64_t visible = std::min(position + 1, static_cast<int64_t>(keys.size()));
  for (int64_t key = 0; key < visible; ++key) {
    const std::vector<double>& k = keys[static_cast<size_t>(key)];
    const auto block = static_cast<size_t>(key / index.block);
    if (k.empty() || block >= scores->size()) continue;
    Score dot;
    for (size_t d = 0; d < q.size(); ++d) {
      dot.value += q[d] * k[d];
      dot.magnitude += std::fabs(q[d] * k[d]);
    }
    (*scores)[block].value = larger((*scores)[block].value, dot.value);
    (*scores)[block].magnitude = std::max((*scores)[block].magnitude, dot.magnitude);
  }
}

// use(row, output head, request, position, scores of `blocks` blocks) for all rows of all requests.
template <class Use>
void for_each_list(const Index& index, int64_t blocks, const Use& use) {
  const int64_t dim = index.q.last_size();
  const std::vector<Score> none(static_cast<size_t>(blocks), {kMinusInfinity, 0});
  for (size_t b = 0; b < index.requests.size(); ++b) {
    const Request& r = index.requests[b];
    std::vector<std::vector<Score>> scores(static_cast<size_t>(r.rows * index.outputs()), none);
    for (int64_t head = 0; head < index.heads; ++head) {
      const auto keys = key_rows(index.k, index.sequences, r, static_cast<int64_t>(b), index.key_heads == 1 ? 0 : head);
      for (int64_t t = 0; t < r.rows; ++t) {
        const std::vector<double> q = index.q.row(((r.first_row + t) * index.heads + head) * dim, dim);
        const int64_t output = index.reduce ? 0 : head;
        add_scores(index, q, keys, r.offset + t, &scores[static_cast<size_t>(t * index.outputs() + output)]);
      }
    }
    for (int64_t i = 0; i < r.rows * index.outputs(); ++i) {
      const int64_t t = i / index.outputs();
      use(r.first_row + t, i % index.outputs(), r, r.offset + t, scores[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace

BlockScores msa_block_scores(const tessera_msa_block_scores_args& args) {
  const Index index(args.index);
  const int64_t blocks = View(args.scores).last_size();
  BlockScores result;
  result.score.assign(static_cast<size_t>(index.rows() * index.outputs() * blocks), kMinusInfinity);
  result.magnitude.assign(result.score.size(), 0);
  for_each_list(index, blocks, [&](int64_t row, int64_t head, const Request&, int64_t, const std::vector<Score>& s) {
    const size_t first = index.place(row, head) * s.size();
    for (size_t n = 0; n < s.size(); ++n) {
      result.score[first + n] = s[n].value;
      result.magnitude[first + n] = s[n].magnitude;
    }
  });
  return result;
}

Selection msa_select(const tessera_msa_select_args& args) {
  const Index index(args.index);
  const Rule rule = {args.topk, index.block, args.local_blocks, args.init_blocks};
  const int64_t blocks = index.blocks();
  Selection empty;  // of rows that belong to no request
  add_list(rule, std::vector<Tier>(static_cast<size_t>(blocks), kInvisible), {}, &empty);
  std::vector<Selection> lists(static_cast<size_t>(index.rows() * index.outputs()), empty);
  for_each_list(index, blocks,
                [&](int64_t row, int64_t head, const Request& r, int64_t position, const std::vector<Score>& s) {
                  std::vector<Tier> tiers;
                  for (int64_t n = 0; n < blocks; ++n) tiers.push_back(tier_of(rule, position, position, r.keys, n));
                  Selection& list = lists[index.place(row, head)];
                  list = {};
                  add_list(rule, tiers, s, &list);
                });
  Selection all;
  for (const Selection& list : lists) {
    all.ids.insert(all.ids.end(), list.ids.begin(), list.ids.end());
    all.score.insert(all.score.end(), list.score.begin(), list.score.end());
    all.magnitude.insert(all.magnitude.end(), list.magnitude.begin(), list.magnitude.end());
    all.tier.insert(all.tier.end(), list.tier.begin(), list.tier.end());
  }
  return all;
}

}  // namespace reference

Status reference_msa_block_scores(const tessera_msa_block_scores_args& args) {
  reference::View(args.scores).set_values(reference::msa_block_scores(args).score);
  return {};
}

Status reference_msa_select(const tessera_msa_select_args& args) {
  const std::vector<int32_t> ids = reference::msa_select(args).ids;
  reference::View(args.indices).set_values(std::vector<double>(ids.begin(), ids.end()));
  return {};
}

}  // namespace tessera
