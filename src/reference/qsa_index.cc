// The indexer of QSA: block scores as sums over heads of what is positive in q . k, and the best K blocks by them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/qsa_rows.h"
#include "reference/reference.h"
#include "reference/select.h"
#include "reference/view.h"

namespace tessera {
namespace reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

int64_t integer(const View& v, int64_t i) { return static_cast<int64_t>(v.get(i)); }

// Of a request, from its first; empty where a key does not exist.
using Keys = std::vector<std::vector<double>>;

// Where the keys of requests lie: [B, N, D], or pages [P, ps, (1,) D]; with one request also [N, (1,) D].
struct Storage {
  Storage(const tessera_tensor& keys, const tessera_tensor& page_table, int64_t keys_of_each)
      : k(keys), table(page_table), count(keys_of_each) {
    if (table.given() && __builtin_mul_overflow(table.size(1), k.size(1), &count)) count = INT64_MAX;
  }
  Keys first(int64_t request, int64_t n) const {
    const int64_t dim = k.last_size();
    Keys rows(static_cast<size_t>(n));
    for (int64_t g = 0; g < n; ++g) {
      int64_t row = request * count + g;
      if (table.given()) {
        const int64_t page = integer(table, request * table.size(1) + g / k.size(1));
        if (page < 0 || page >= k.size(0)) continue;
        row = page * k.size(1) + g % k.size(1);
      }
      rows[static_cast<size_t>(g)] = k.row(row * dim, dim);
    }
    return rows;
  }

  View k, table;
  int64_t count;  // keys that a request can have
};

// Rows of q [..., Hi, D] with their weights [..., Hi].
struct Queries {
  Queries(const tessera_tensor& queries, const tessera_tensor& head_weights, const float* given_scale)
      : q(queries), weights(head_weights), heads(q.size(q.rank() - 2)), dim(q.last_size()) {
    scale = given_scale == nullptr ? 1 / std::sqrt(static_cast<double>(dim)) : *given_scale;
  }
  int64_t rows() const { return q.elements() / (heads * dim); }
  std::vector<std::vector<double>> row(int64_t t) const {
    std::vector<std::vector<double>> all;
    for (int64_t h = 0; h < heads; ++h) all.push_back(q.row((t * heads + h) * dim, dim));
    return all;
  }
  Score score(const std::vector<std::vector<double>>& row, int64_t t, const std::vector<double>& key) const {
    Score sum;
    for (size_t h = 0; h < row.size(); ++h) {
      Score dot;
      for (size_t d = 0; d < key.size(); ++d) {
        dot.value += row[h][d] * key[d];
        dot.magnitude += std::fabs(row[h][d] * key[d]);
      }
      const double weight = weights.given() ? weights.get(t * heads + static_cast<int64_t>(h)) : 1;
      sum.value += weight * (dot.value < 0 ? 0 : dot.value);  // NaN stays
      sum.magnitude += std::fabs(weight) * dot.magnitude;
    }
    return {scale * sum.value, std::fabs(scale) * sum.magnitude};
  }

  View q, weights;
  int64_t heads, dim;
  double scale;
};

// What a row sees: keys [begin, end) of a request, as far as they exist. The position is that in tokens, of which
// seq_lens_k leaves so many; -1: no token is seen.
struct Sight {
  int64_t request = 0, begin = 0, end = 0;
  int64_t position = -1;
};

// use(row, seen, scores) for every row; scores[g] and seen[g] of each key g up to the last that any row of the request
// may see.
template <class Use>
void for_each_row(const Queries& queries, const Storage& storage, const std::vector<Sight>& sights, const Use& use) {
  int64_t request = -1;
  Keys keys;
  for (size_t i = 0; i < sights.size(); ++i) {
    const Sight& sight = sights[i];
    if (sight.request != request) {
      int64_t most = 0;
      for (const Sight& s : sights) most = std::max(most, s.request == sight.request ? s.end : 0);
      keys = storage.first(sight.request, most);
      request = sight.request;
    }
    const auto t = static_cast<int64_t>(i);
    const auto row = queries.row(t);
    std::vector<Tier> tiers(keys.size(), kInvisible);
    std::vector<Score> scores(keys.size(), {kMinusInfinity, 0});
    for (int64_t g = sight.begin; g < sight.end; ++g) {
      const auto at = static_cast<size_t>(g);
      if (keys[at].empty()) continue;
      tiers[at] = kByScore;
      scores[at] = queries.score(row, t, keys[at]);
    }
    use(t, tiers, scores);
  }
}

BlockScores block_scores(const Queries& queries, const Storage& storage, const std::vector<Sight>& sights,
                         int64_t columns) {
  BlockScores result;
  result.score.assign(sights.size() * static_cast<size_t>(columns), kMinusInfinity);
  result.magnitude.assign(result.score.size(), 0);
  for_each_row(queries, storage, sights, [&](int64_t t, const std::vector<Tier>&, const std::vector<Score>& scores) {
    for (int64_t g = 0; g < columns && g < static_cast<int64_t>(scores.size()); ++g) {
      result.score[static_cast<size_t>(t * columns + g)] = scores[static_cast<size_t>(g)].value;
      result.magnitude[static_cast<size_t>(t * columns + g)] = scores[static_cast<size_t>(g)].magnitude;
    }
  });
  return result;
}

// ---- Rows of tessera_qsa_index -------------------------------------------------------------------------------------

struct Index {
  explicit Index(const tessera_qsa_index& a)
      : queries(a.q, a.weights, a.scale),
        storage(a.k, a.page_table, a.page_table.ndim == 0 ? a.k.shape[1] : 0),
        packed(a.q.ndim == 3),
        requests(packed ? (a.page_table.ndim == 0 ? a.k.shape[0] : a.page_table.shape[0]) : a.q.shape[0]),
        block(a.block_size == 0 ? 4 : a.block_size),
        args(a) {}

  std::vector<Sight> sights() const {
    const View positions(args.query_positions), lens_k(args.seq_lens_k);
    const std::vector<RowOwner> owners =
        row_owners({packed, args.q, requests, args.cu_seqlens_q, args.token_to_req, args.seq_lens_q});
    std::vector<Sight> all;
    for (size_t i = 0; i < owners.size(); ++i) {
      const int64_t b = owners[i].request;
      all.emplace_back();
      if (b < 0) continue;
      const int64_t given = positions.given() ? integer(positions, static_cast<int64_t>(i)) : owners[i].index;
      const int64_t position = lens_k.given() ? std::min(given, integer(lens_k, b) - 1) : given;
      all.back().request = b;
      all.back().position = std::max<int64_t>(position, -1);
      all.back().end = std::min((all.back().position + 1) / block, storage.count);
    }
    return all;
  }

  Queries queries;
  Storage storage;
  bool packed;
  int64_t requests, block;
  const tessera_qsa_index& args;
};

}  // namespace

BlockScores qsa_indexer_mqa_score(const tessera_qsa_indexer_mqa_score_args& args) {
  const Index index(args.index);
  return block_scores(index.queries, index.storage, index.sights(), View(args.scores).last_size());
}

BlockScores qsa_mqa_prefill(const tessera_qsa_mqa_prefill_args& args) {
  const Queries queries(args.q, args.weights, args.scale);
  const View starts(args.row_starts), ends(args.row_ends);
  const int64_t keys = args.k.shape[0];
  std::vector<Sight> sights;
  for (int64_t t = 0; t < queries.rows(); ++t) {
    sights.push_back({0, std::max<int64_t>(integer(starts, t), 0), std::min(integer(ends, t), keys)});
  }
  return block_scores(queries, Storage(args.k, {}, keys), sights, keys);
}

BlockScores qsa_mqa_decode(const tessera_qsa_mqa_decode_args& args) {
  const Queries queries(args.q, args.weights, args.scale);
  const Storage storage(args.k_cache, args.page_table, 0);
  const View lens(args.context_lens);
  const int64_t n = args.q.ndim == 4 ? args.q.shape[1] : 1;
  const int64_t columns = View(args.scores).last_size();
  std::vector<Sight> sights;
  for (int64_t t = 0; t < queries.rows(); ++t) {
    sights.push_back({t / n, 0, std::min({integer(lens, lens.rank() == 2 ? t : t / n), storage.count, columns})});
  }
  return block_scores(queries, storage, sights, columns);
}

Selection qsa_select(const tessera_qsa_select_args& args) {
  const Index index(args.index);
  const std::vector<Sight> sights = index.sights();
  size_t blocks = 0;
  for (const Sight& s : sights) blocks = std::max(blocks, static_cast<size_t>(s.end));
  const Rule rule = {args.topk, index.block, 0, 0};
  Selection result;
  for_each_row(index.queries, index.storage, sights, [&](int64_t, std::vector<Tier> tiers, std::vector<Score> scores) {
    tiers.resize(blocks, kInvisible);
    scores.resize(blocks);
    add_list(rule, tiers, scores, &result);
  });
  return result;
}

std::vector<int32_t> qsa_token_indices(const tessera_qsa_select_args& args, const std::vector<int32_t>& ids) {
  const Index index(args.index);
  std::vector<int32_t> lists = ids, positions;
  for (const Sight& sight : index.sights()) positions.push_back(static_cast<int32_t>(sight.position));
  const auto rows = static_cast<int64_t>(positions.size());
  const int64_t width = args.topk * index.block + index.block - 1;
  std::vector<int32_t> tokens(static_cast<size_t>(rows * width));
  tessera_qsa_expand_blocks_args expand = {};
  expand.block_ids = {lists.data(), TESSERA_I32, 2, {rows, args.topk}, {args.topk, 1}};
  expand.query_positions = {positions.data(), TESSERA_I32, 1, {rows}, {1}};
  expand.block_size = index.block;
  expand.token_indices = {tokens.data(), TESSERA_I32, 2, {rows, width}, {width, 1}};
  reference_qsa_expand_blocks(expand);
  return tokens;
}

}  // namespace reference

namespace {

void set_ids(const tessera_tensor& to, const std::vector<int32_t>& ids) {
  reference::View(to).set_values(std::vector<double>(ids.begin(), ids.end()));
}

}  // namespace

Status reference_qsa_indexer_mqa_score(const tessera_qsa_indexer_mqa_score_args& args) {
  reference::View(args.scores).set_values(reference::qsa_indexer_mqa_score(args).score);
  return {};
}

Status reference_qsa_mqa_prefill(const tessera_qsa_mqa_prefill_args& args) {
  reference::View(args.scores).set_values(reference::qsa_mqa_prefill(args).score);
  return {};
}

Status reference_qsa_mqa_decode(const tessera_qsa_mqa_decode_args& args) {
  reference::View(args.scores).set_values(reference::qsa_mqa_decode(args).score);
  return {};
}

Status reference_qsa_select(const tessera_qsa_select_args& args) {
  const std::vector<int32_t> ids = reference::qsa_select(args).ids;
  if (args.indices.ndim != 0) set_ids(args.indices, ids);
  if (args.token_indices.ndim != 0) set_ids(args.token_indices, reference::qsa_token_indices(args, ids));
  return {};
}

}  // namespace tessera
