// Training-free selection of KV blocks: a score for every visible block, then the best K in the order of preference.
#include "reference/select.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/reference.h"
#include "reference/requests.h"
#include "reference/view.h"

namespace tessera {
namespace reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

using Rows = std::vector<std::vector<double>>;  // of the keys of a request; empty where the key does not exist

template <class Args>
tessera_sequences sequences_of(const Args& args) {
  tessera_sequences s = {};
  s.page_table = args.page_table;
  s.seqused_k = args.seqused_k;
  s.q_offset = args.q_offset;
  return s;
}

// What the two selectors have in common; the defaults that differ are given by the caller.
struct Call {
  template <class Args>
  Call(const Args& args, int64_t default_block, int64_t default_block_q)
      : q(args.q), k(args.k), sequences(sequences_of(args)), requests(requests_of(args.q, false, k, sequences)) {
    queries = q.size(1);
    heads = q.size(2);
    kv_heads = heads_of(k, sequences);
    group = heads / kv_heads;
    dim = q.size(3);
    rule = {args.topk, args.block_size == 0 ? default_block : args.block_size, args.local_blocks, args.init_blocks};
    block_q = args.block_q == 0 ? default_block_q : args.block_q;
    blocks = 0;
    for (const Request& r : requests) blocks = std::max(blocks, blocks_of(r.keys, rule.block));
  }

  int64_t position(int64_t b, int64_t t) const { return requests[static_cast<size_t>(b)].offset + t; }
  std::vector<double> query(int64_t b, int64_t t, int64_t h) const {
    return q.row(((b * queries + t) * heads + h) * dim, dim);
  }

  View q;
  tessera_tensor k;
  tessera_sequences sequences;
  std::vector<Request> requests;
  int64_t queries, heads, kv_heads, group, dim, block_q, blocks;
  Rule rule;
};

// One list to be made: query rows [first, end) of a request, for one KV head.
struct List {
  int64_t b, kv_head, first, end;
  const Rows& keys;
};

// The ids of the best K visible blocks, ascending, then -1.
std::vector<int32_t> best(const std::vector<Tier>& tiers, const std::vector<Score>& scores, int64_t topk) {
  std::vector<int32_t> order;
  for (size_t n = 0; n < tiers.size(); ++n) {
    if (tiers[n] != kInvisible) order.push_back(static_cast<int32_t>(n));
  }
  const auto preferred = [&](int32_t a, int32_t b) {
    const size_t i = static_cast<size_t>(a);
    const size_t j = static_cast<size_t>(b);
    if (tiers[i] != tiers[j]) return tiers[i] > tiers[j];
    const double x = scores[i].value;
    const double y = scores[j].value;
    if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
    if (!std::isnan(x) && x != y) return x > y;
    return a < b;
  };
  std::sort(order.begin(), order.end(), preferred);
  if (static_cast<int64_t>(order.size()) > topk) order.resize(static_cast<size_t>(topk));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(topk), -1);
  return order;
}

// score_list(list, tiers) gives one Score per block; those of invisible blocks are not used.
template <class ScoreList>
Selection select(const Call& call, ScoreList score_list) {
  Selection result;
  for (size_t i = 0; i < call.requests.size(); ++i) {
    const auto b = static_cast<int64_t>(i);
    for (int64_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
      const Rows keys = key_rows(call.k, call.sequences, call.requests[i], b, kv_head);
      for (int64_t first = 0; first < call.queries; first += call.block_q) {
        const List list = {b, kv_head, first, std::min(first + call.block_q, call.queries), keys};
        std::vector<Tier> tiers;
        for (int64_t n = 0; n < call.blocks; ++n) {
          tiers.push_back(
              tier_of(call.rule, call.position(b, first), call.position(b, list.end - 1), call.requests[i].keys, n));
        }
        add_list(call.rule, tiers, score_list(list, tiers), &result);
      }
    }
  }
  return result;
}

// Mean over the rows that have a position and over the group's heads of q . (mean of the block's keys). Divided once, at
// the end, so that small integers give exact scores and tie as they should. A block without keys has the lowest score.
std::vector<Score> moba_scores(const Call& call, const List& list, const std::vector<Tier>& tiers) {
  std::vector<Score> scores(tiers.size());
  const int64_t first = std::max(list.first, list.end - 1 - call.position(list.b, list.end - 1));
  for (size_t n = 0; n < tiers.size(); ++n) {
    if (tiers[n] == kInvisible) continue;
    const int64_t begin = static_cast<int64_t>(n) * call.rule.block;
    const int64_t end = begin + std::min(call.rule.block, static_cast<int64_t>(list.keys.size()) - begin);
    std::vector<double> sum(static_cast<size_t>(call.dim), 0);
    std::vector<double> sum_magnitude(sum.size(), 0);
    int64_t keys = 0;
    for (int64_t key = begin; key < end; ++key) {
      const std::vector<double>& row = list.keys[static_cast<size_t>(key)];
      keys += row.empty() ? 0 : 1;
      for (size_t d = 0; d < row.size(); ++d) {
        sum[d] += row[d];
        sum_magnitude[d] += std::fabs(row[d]);
      }
    }
    for (int64_t t = first; t < list.end; ++t) {
      for (int64_t h = list.kv_head * call.group; h < (list.kv_head + 1) * call.group; ++h) {
        const std::vector<double> q = call.query(list.b, t, h);
        for (size_t d = 0; d < sum.size(); ++d) {
          scores[n].value += q[d] * sum[d];
          scores[n].magnitude += std::fabs(q[d]) * sum_magnitude[d];
        }
      }
    }
    const double products = static_cast<double>((list.end - first) * call.group * keys);
    scores[n].value = keys == 0 ? kMinusInfinity : scores[n].value / products;
    scores[n].magnitude = keys == 0 ? 0 : scores[n].magnitude / products;
  }
  return scores;
}

// Adds one sampled row's attention probabilities to the blocks that they fall into.
void add_probabilities(const Call& call, const List& list, int64_t t, int64_t h, double scale,
                       std::vector<Score>* scores) {
  const int64_t end = std::min(call.position(list.b, t) + 1, static_cast<int64_t>(list.keys.size()));
  const std::vector<double> q = call.query(list.b, t, h);
  std::vector<double> s;
  std::vector<size_t> block;
  double max = kMinusInfinity;
  double reach = 0;
  for (int64_t key = 0; key < end; ++key) {
    const std::vector<double>& k = list.keys[static_cast<size_t>(key)];
    if (k.empty()) continue;
    double dot = 0;
    double magnitude = 0;
    for (size_t d = 0; d < q.size(); ++d) {
      dot += q[d] * k[d];
      magnitude += std::fabs(q[d] * k[d]);
    }
    s.push_back(dot * scale);
    block.push_back(static_cast<size_t>(key / call.rule.block));
    max = std::max(max, s.back());
    reach = std::max(reach, magnitude * std::fabs(scale));
  }
  double sum = 0;
  for (double x : s) sum += std::exp(x - max);
  for (size_t i = 0; i < s.size(); ++i) {
    const double p = std::exp(s[i] - max) / sum;
    Score& score = (*scores)[block[i]];
    score.value += p;
    // An error e of the scores changes p by a factor of up to exp(2 e).
    score.magnitude += p * std::max(1.0, 2 * reach);
  }
}

}  // namespace

int64_t blocks_of(int64_t keys, int64_t block) { return keys / block + (keys % block != 0 ? 1 : 0); }

Tier tier_of(const Rule& rule, int64_t first, int64_t last, int64_t keys, int64_t n) {
  if (n >= blocks_of(keys, rule.block) || last < n * rule.block) return kInvisible;
  if (n < rule.init_blocks) return kForced;
  if (n > last / rule.block - rule.local_blocks) return kForced;
  // Positions are consecutive, so the rows' blocks are those from the first row's to the last row's.
  const bool own = n >= first / rule.block;
  return own && rule.local_blocks >= 1 ? kOwn : kByScore;
}

void add_list(const Rule& rule, const std::vector<Tier>& tiers, const std::vector<Score>& scores, Selection* result) {
  for (size_t n = 0; n < tiers.size(); ++n) {
    result->tier.push_back(tiers[n]);
    result->score.push_back(tiers[n] == kInvisible ? kMinusInfinity : scores[n].value);
    result->magnitude.push_back(tiers[n] == kInvisible ? 0 : scores[n].magnitude);
  }
  const std::vector<int32_t> ids = best(tiers, scores, rule.topk);
  result->ids.insert(result->ids.end(), ids.begin(), ids.end());
}

Selection moba_select(const tessera_moba_select_args& args) {
  const Call call(args, 128, 1);
  return select(call, [&](const List& list, const std::vector<Tier>& tiers) { return moba_scores(call, list, tiers); });
}

Selection mass_select(const tessera_mass_select_args& args) {
  const Call call(args, 64, 64);
  const int64_t stride = args.stride == 0 ? 8 : args.stride;
  const double default_scale = 1 / std::sqrt(static_cast<double>(call.dim));
  const double scale = args.softmax_scale == nullptr ? default_scale : *args.softmax_scale;
  return select(call, [&](const List& list, const std::vector<Tier>& tiers) {
    std::vector<Score> scores(tiers.size());
    for (int64_t t = list.first; t < list.end; ++t) {
      if ((t - list.first) % stride != 0 && t != list.end - 1) continue;
      for (int64_t h = list.kv_head * call.group; h < (list.kv_head + 1) * call.group; ++h) {
        add_probabilities(call, list, t, h, scale, &scores);
      }
    }
    return scores;
  });
}

}  // namespace reference

Status reference_moba_select(const tessera_moba_select_args& args) {
  const std::vector<int32_t> ids = reference::moba_select(args).ids;
  reference::View(args.indices).set_values(std::vector<double>(ids.begin(), ids.end()));
  return {};
}

Status reference_mass_select(const tessera_mass_select_args& args) {
  const std::vector<int32_t> ids = reference::mass_select(args).ids;
  reference::View(args.indices).set_values(std::vector<double>(ids.begin(), ids.end()));
  return {};
}

}  // namespace tessera
