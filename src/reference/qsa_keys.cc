// Compressed keys and token lists, one number at a time.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "reference/reference.h"
#include "reference/view.h"

namespace tessera {
namespace {

using reference::View;

// In the type of the cache.
double rounded(double x, tessera_dtype dtype) {
  switch (dtype) {
    case TESSERA_BF16: return reference::decode16(reference::encode16(x, 8), 8);
    case TESSERA_F16: return reference::decode16(reference::encode16(x, 5), 5);
    default: return static_cast<float>(x);
  }
}

int64_t block_size(const tessera_qsa_key_rule& rule) { return rule.block_size == 0 ? 4 : rule.block_size; }

// The cosine and sine of pair i.
struct Angle {
  double cos, sin;
};
using Angles = std::function<Angle(int64_t i)>;

Angles at_position(const tessera_qsa_key_rule& rule, double position) {
  const double theta = rule.rope_theta == nullptr ? 1e7 : *rule.rope_theta;
  return [=](int64_t i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rule.rotary_dim));
    return Angle{std::cos(position * frequency), std::sin(position * frequency)};
  };
}

// Block i of request b turns as `positions` or `cos` and `sin` say, else by `position`.
Angles angles_of(const tessera_qsa_key_rule& rule, const tessera_tensor& positions, const tessera_tensor& cos,
                 const tessera_tensor& sin, int64_t b, int64_t i, int64_t position) {
  if (cos.ndim != 0) {
    const int64_t first = (b * cos.shape[1] + i) * cos.shape[2];
    return [=](int64_t pair) { return Angle{View(cos).get(first + pair), View(sin).get(first + pair)}; };
  }
  if (positions.ndim == 0) return at_position(rule, static_cast<double>(position));
  return at_position(rule, View(positions).get(b * positions.shape[1] + i));
}

// The key of raw rows.
std::vector<double> key_of(const tessera_qsa_key_rule& rule, tessera_dtype dtype,
                           const std::vector<std::vector<double>>& rows, const Angles& angles) {
  const auto maybe = [&](double x) { return rule.round_intermediates != 0 ? rounded(x, dtype) : x; };
  std::vector<double> x(rows[0].size());
  double squares = 0;
  for (size_t d = 0; d < x.size(); ++d) {
    for (const std::vector<double>& row : rows) x[d] += row[d];
    x[d] = rounded(x[d] / static_cast<double>(rows.size()), dtype);
    squares += x[d] * x[d];
  }
  const double eps = rule.eps == nullptr ? 1e-6 : *rule.eps;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  for (size_t d = 0; d < x.size(); ++d) {
    x[d] = maybe(x[d] * factor * (1 + View(rule.norm_weight).get(static_cast<int64_t>(d))));
  }
  const auto half = static_cast<size_t>(rule.rotary_dim / 2);
  for (size_t i = 0; i < half; ++i) {
    const Angle angle = angles(static_cast<int64_t>(i));
    const double c = maybe(angle.cos), s = maybe(angle.sin);
    const double a = x[i], b = x[i + half];
    x[i] = maybe(maybe(a * c) - maybe(b * s));
    x[i + half] = maybe(maybe(b * c) + maybe(a * s));
  }
  return x;
}

void put(const tessera_tensor& to, int64_t row, const std::vector<double>& x) {
  const auto dim = static_cast<int64_t>(x.size());
  for (int64_t d = 0; d < dim; ++d) View(to).set(row * dim + d, x[static_cast<size_t>(d)]);
}

// One request of a call that appends.
struct Appended {
  const tessera_qsa_append_keys_args& a;
  int64_t b;
  int64_t begin;      // tokens before the call
  int64_t rows;       // new ones
  int64_t first_row;  // row-major

  int64_t dim() const { return a.ring.shape[2]; }
  int64_t capacity() const { return a.ring.shape[1]; }
  // Negative: none.
  int64_t slot() const {
    const double slot = a.ring_slots.ndim == 0 ? static_cast<double>(b) : View(a.ring_slots).get(b);
    return slot < static_cast<double>(a.ring.shape[0]) ? static_cast<int64_t>(slot) : -1;
  }
  std::vector<double> token(int64_t t) const {
    if (t >= begin) return View(a.raw_keys).row((first_row + t - begin) * dim(), dim());
    return View(a.ring).row((slot() * capacity() + t % capacity()) * dim(), dim());
  }
  // The row of the cache for block g; negative: none.
  int64_t place(int64_t g) const {
    const int64_t page_size = a.cache.shape[1];
    if (a.page_table.ndim == 0) return g < page_size ? b * page_size + g : -1;
    const int64_t max_pages = a.page_table.shape[1];
    if (page_size == 0 || g / page_size >= max_pages) return -1;
    const double page = View(a.page_table).get(b * max_pages + g / page_size);
    const bool exists = page >= 0 && page < static_cast<double>(a.cache.shape[0]);
    return exists ? static_cast<int64_t>(page) * page_size + g % page_size : -1;
  }
  // Whether something says how the block turns.
  bool turns(int64_t i) const {
    if (a.cos.ndim != 0) return a.rule.rotary_dim == 0 || i < a.cos.shape[1];
    return a.block_positions.ndim == 0 || i < a.block_positions.shape[1];
  }

  void complete_blocks() const {
    const int64_t bs = block_size(a.rule);
    for (int64_t g = begin / bs; g < (begin + rows) / bs; ++g) {
      const int64_t i = g - begin / bs;
      if (place(g) < 0 || !turns(i) || (g * bs < begin && slot() < 0)) continue;
      std::vector<std::vector<double>> raw;
      for (int64_t t = g * bs; t < (g + 1) * bs; ++t) raw.push_back(token(t));
      const Angles angles =
          a.rule.rotary_dim == 0 ? Angles() : angles_of(a.rule, a.block_positions, a.cos, a.sin, b, i, g * bs);
      put(a.cache, place(g), key_of(a.rule, a.ring.dtype, raw, angles));
    }
  }
  void keep() const {
    if (slot() < 0) return;
    for (int64_t t = std::max(begin, begin + rows - capacity()); t < begin + rows; ++t) {
      put(a.ring, slot() * capacity() + t % capacity(), token(t));
    }
  }
};

std::vector<Appended> appended(const tessera_qsa_append_keys_args& a) {
  const bool packed = a.raw_keys.ndim == 2;
  const int64_t per_request = packed ? 0 : a.raw_keys.shape[1];
  std::vector<Appended> all;
  int64_t taken = 0;
  for (int64_t b = 0; b < a.seq_lens.shape[0]; ++b) {
    Appended one = {a, b, std::max<int64_t>(static_cast<int64_t>(View(a.seq_lens).get(b)), 0), per_request,
                    b * per_request};
    if (packed) {
      const auto begin = static_cast<int64_t>(View(a.cu_seqlens_q).get(b));
      const auto end = static_cast<int64_t>(View(a.cu_seqlens_q).get(b + 1));
      const bool valid = begin >= taken && begin <= end && end <= a.raw_keys.shape[0];
      one.first_row = begin;
      one.rows = valid ? end - begin : 0;
      if (valid) taken = end;
    }
    if (one.rows > 0) all.push_back(one);
  }
  return all;
}

}  // namespace

Status reference_qsa_compress_keys(const tessera_qsa_compress_keys_args& a) {
  const int64_t bs = block_size(a.rule);
  const int64_t tokens = a.raw_keys.shape[1], dim = a.raw_keys.shape[2];
  for (int64_t b = 0; b < a.out.shape[0]; ++b) {
    for (int64_t g = 0; g < a.out.shape[1]; ++g) {
      std::vector<std::vector<double>> raw;
      for (int64_t t = g * bs; t < (g + 1) * bs; ++t) {
        raw.push_back(View(a.raw_keys).row((b * tokens + t) * dim, dim));
      }
      const int64_t i = a.cos.ndim != 0 ? g : g * bs;
      const Angles angles =
          a.rule.rotary_dim == 0 ? Angles() : angles_of(a.rule, a.positions, a.cos, a.sin, b, i, g * bs);
      put(a.out, b * a.out.shape[1] + g, key_of(a.rule, a.out.dtype, raw, angles));
    }
  }
  return {};
}

Status reference_qsa_append_keys(const tessera_qsa_append_keys_args& a) {
  const std::vector<Appended> all = appended(a);
  for (const Appended& one : all) one.complete_blocks();
  for (const Appended& one : all) one.keep();
  return {};
}

Status reference_qsa_expand_blocks(const tessera_qsa_expand_blocks_args& a) {
  const View ids(a.block_ids), positions(a.query_positions), tokens(a.token_indices);
  const int64_t bs = a.block_size == 0 ? 4 : a.block_size;
  const int64_t width = tokens.last_size();
  for (int64_t row = 0; width > 0 && row < tokens.elements() / width; ++row) {
    const auto position = static_cast<int64_t>(positions.get(row));
    std::vector<double> list;
    const auto add = [&](int64_t id) {
      for (int64_t t = id * bs; t < (id + 1) * bs && t <= position; ++t) list.push_back(static_cast<double>(t));
    };
    const int64_t incomplete = position < 0 ? 0 : (position + 1) / bs;
    bool listed = false;
    for (int64_t i = 0; i < ids.last_size(); ++i) {
      const auto id = static_cast<int64_t>(ids.get(row * ids.last_size() + i));
      if (id < 0 || id > incomplete || (id == incomplete && listed)) continue;
      listed = listed || id == incomplete;
      add(id);
    }
    if (!listed) add(incomplete);
    list.resize(static_cast<size_t>(width), -1);
    for (int64_t i = 0; i < width; ++i) tokens.set(row * width + i, list[static_cast<size_t>(i)]);
  }
  return {};
}

Status reference_qsa_screen_keys(const tessera_qsa_screen_keys_args& a) {
  const View keys(a.keys), codes(a.codes), scales(a.scales);
  const int64_t dim = keys.last_size();
  for (int64_t row = 0; dim > 0 && row < keys.elements() / dim; ++row) {
    const std::vector<double> key = keys.row(row * dim, dim);
    double most = 0;
    for (const double x : key) most = std::isnan(x) || std::isnan(most) ? NAN : std::max(most, std::abs(x));
    const double scale = static_cast<float>(most / 127);
    const bool good = scale >= 0x1p-40 && scale <= 0x1p40;
    scales.set(row, good || most == 0 ? scale : NAN);
    for (int64_t i = 0; i < dim; ++i) {
      codes.set(row * dim + i, good ? std::round(key[static_cast<size_t>(i)] / scale) : 0);
    }
  }
  return {};
}

}  // namespace tessera
