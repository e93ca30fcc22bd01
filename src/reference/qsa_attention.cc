// QSA's attention, row by row: softmax over the tokens on the row's list that count.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/qsa_rows.h"
#include "reference/reference.h"
#include "reference/view.h"

namespace tessera {
namespace reference {
namespace {

using Args = tessera_qsa_sparse_attention_args;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

int64_t integer(const View& v, int64_t i) { return static_cast<int64_t>(v.get(i)); }

// Where the tokens of requests lie: [B, Sk, H, D], packed [total_k, H, D], pages [P, ps, H, D], pages of units
// [P, H, ceil(D/e), ps, e], or the slots themselves.
struct Storage {
  explicit Storage(const Args& a)
      : k(a.k),
        cu(a.cu_seqlens_k),
        table(a.page_table),
        lens(a.seq_lens_k),
        physical(a.selected_kv_indices.ndim != 0),
        page_size(k.rank() == 5 ? k.size(3) : k.size(1)),
        entry_size(a.page_size != 0 ? a.page_size : page_size) {}

  int64_t requests() const {
    if (physical) return 1;
    return table.given() ? table.size(0) : cu.given() ? cu.size(0) - 1 : k.size(0);
  }
  // Where the request's tokens start on the axis of packed keys, and how many it has.
  int64_t first(int64_t b) const { return sane(b) ? integer(cu, b) : 0; }
  int64_t tokens(int64_t b) const {
    int64_t count = 0;
    if (table.given()) {
      if (__builtin_mul_overflow(table.size(1), entry_size, &count)) count = INT64_MAX;
    } else if (cu.given()) {
      count = sane(b) ? integer(cu, b + 1) - integer(cu, b) : 0;
    } else {
      count = physical && k.rank() == 5 ? k.size(0) * page_size : k.size(physical ? 0 : 1);
    }
    return lens.given() ? std::clamp<int64_t>(integer(lens, b), 0, count) : count;
  }
  // On the axes before the heads, flattened; -1: behind a page that does not exist.
  int64_t token(int64_t b, int64_t id) const {
    if (physical) return id;
    if (cu.given()) return first(b) + id;
    if (!table.given()) return b * k.size(1) + id;
    const int64_t entry = integer(table, b * table.size(1) + id / entry_size);
    if (entry < 0 || entry >= k.size(0)) return -1;
    const int64_t token = entry * entry_size + id % entry_size;
    return token < k.size(0) * page_size ? token : -1;
  }

  View k, cu, table, lens;
  bool physical;
  int64_t page_size;
  int64_t entry_size;  // tokens that an entry of the table names

 private:
  bool sane(int64_t b) const {
    if (!cu.given()) return false;
    return integer(cu, b) >= 0 && integer(cu, b) <= integer(cu, b + 1) && integer(cu, b + 1) <= k.size(0);
  }
};

// The tokens that count of every row's list, in its order.
std::vector<std::vector<int64_t>> listed_tokens(const Args& args, const Storage& storage) {
  const View ids(storage.physical ? args.selected_kv_indices : args.token_indices), positions(args.query_positions);
  const std::vector<RowOwner> owners =
      row_owners({args.q.ndim == 3, args.q, storage.requests(), args.cu_seqlens_q, args.token_to_req, args.seq_lens_q});
  std::vector<std::vector<int64_t>> all(owners.size());
  for (size_t i = 0; i < owners.size(); ++i) {
    const auto [b, index, rows] = owners[i];
    if (b < 0) continue;
    const auto row = static_cast<int64_t>(i);
    const int64_t tokens = storage.tokens(b);
    int64_t last = tokens - rows + index;
    if (positions.given()) last = integer(positions, row);
    if (storage.physical) last = tokens;
    for (int64_t w = 0; w < ids.last_size(); ++w) {
      const int64_t id = integer(ids, row * ids.last_size() + w);
      if (id < 0 || id >= tokens || id > last) continue;
      const int64_t token = storage.token(b, id);
      if (token >= 0) all[i].push_back(token);
    }
  }
  return all;
}

// Features of one head of tokens.
std::vector<std::vector<double>> rows_of(const View& t, const std::vector<int64_t>& tokens, int64_t head) {
  const int64_t heads = t.size(t.rank() - 2), dim = t.last_size();
  std::vector<std::vector<double>> rows;
  rows.reserve(tokens.size());
  for (int64_t token : tokens) rows.push_back(t.row((token * heads + head) * dim, dim));
  return rows;
}

// The same where element d of the key in slot j is [page, head, d / e, j, d % e], and that of the value
// [page, head, j / e, d, j % e].
std::vector<std::vector<double>> unit_rows_of(const View& t, bool values, int64_t page_size, int64_t dim,
                                              const std::vector<int64_t>& tokens, int64_t head) {
  const int64_t e = t.size(4);
  std::vector<std::vector<double>> rows;
  for (int64_t token : tokens) {
    const int64_t slot = token % page_size;
    const int64_t begin = (token / page_size * t.size(1) + head) * t.size(2);
    std::vector<double>& row = rows.emplace_back();
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t outer = values ? slot / e : d / e, middle = values ? d : slot, last = values ? slot % e : d % e;
      row.push_back(t.get(((begin + outer) * t.size(3) + middle) * e + last));
    }
  }
  return rows;
}

// Head `at` of all rows' heads: softmax of q . k over the tokens, then the mean of v.
void attend(const std::vector<double>& q, double scale, const std::vector<std::vector<double>>& k,
            const std::vector<std::vector<double>>& v, size_t at, Attention* result) {
  std::vector<double> scores;
  double max = kMinusInfinity;
  for (const std::vector<double>& key : k) {
    double dot = 0, magnitude = 0;
    for (size_t d = 0; d < q.size(); ++d) {
      dot += q[d] * key[d];
      magnitude += std::fabs(q[d] * key[d]);
    }
    scores.push_back(dot * scale);
    max = std::max(max, dot * scale);
    result->reach[at] = std::max(result->reach[at], magnitude * std::fabs(scale));
  }
  if (scores.empty()) return;
  double sum = 0;
  for (double score : scores) sum += std::exp(score - max);
  result->m[at] = max;
  result->l[at] = sum;
  result->lse[at] = max + std::log(sum);
  for (size_t j = 0; j < scores.size(); ++j) {
    const double p = std::exp(scores[j] - max) / sum;
    for (size_t d = 0; d < v[j].size(); ++d) {
      result->out[at * v[j].size() + d] += p * v[j][d];
      result->spread[at * v[j].size() + d] += p * std::fabs(v[j][d]);
    }
  }
}

// out *= sigmoid(gate) in f32, of what has been rounded to out's dtype.
void apply_gate(const View& out, const View& gate) {
  const int64_t features = gate.rank() == out.rank() ? 1 : out.last_size();
  for (int64_t i = 0; i < out.elements(); ++i) {
    const float weight = 1.0f / (1.0f + std::exp(-static_cast<float>(gate.get(i / features))));
    out.set(i, static_cast<float>(out.get(i)) * weight);
  }
}

}  // namespace

Attention qsa_attention(const Args& args) {
  const Storage storage(args);
  const View q(args.q), v(args.v);
  const int64_t heads = q.size(q.rank() - 2), dim = q.last_size();
  const bool units = storage.k.rank() == 5;
  const int64_t dim_v = units ? v.size(3) : v.last_size();
  const int64_t kv_heads = storage.k.size(units ? 1 : storage.k.rank() - 2), group = heads / kv_heads;
  const double scale = args.softmax_scale == nullptr ? 1 / std::sqrt(static_cast<double>(dim)) : *args.softmax_scale;
  const std::vector<std::vector<int64_t>> lists = listed_tokens(args, storage);
  const size_t states = lists.size() * static_cast<size_t>(heads);
  Attention result;
  result.out.assign(states * static_cast<size_t>(dim_v), 0);
  result.spread = result.out;
  result.lse.assign(states, kMinusInfinity);
  result.l.assign(states, 0);
  result.m.assign(states, kMinusInfinity);
  result.reach.assign(states, 0);
  for (size_t row = 0; row < lists.size(); ++row) {
    for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      const auto features = [&](const View& of, bool are_values, int64_t n) {
        return units ? unit_rows_of(of, are_values, storage.page_size, n, lists[row], kv_head)
                     : rows_of(of, lists[row], kv_head);
      };
      const auto keys = features(storage.k, false, dim), values = features(v, true, dim_v);
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const int64_t at = static_cast<int64_t>(row) * heads + h;
        attend(q.row(at * dim, dim), scale, keys, values, static_cast<size_t>(at), &result);
      }
    }
  }
  return result;
}

}  // namespace reference

Status reference_qsa_sparse_attention(const tessera_qsa_sparse_attention_args& args) {
  const reference::Attention result = reference::qsa_attention(args);
  reference::View(args.out).set_values(result.out);
  if (args.lse.ndim != 0) reference::View(args.lse).set_values(result.lse);
  if (args.gate.ndim != 0) reference::apply_gate(reference::View(args.out), reference::View(args.gate));
  return {};
}

}  // namespace tessera
