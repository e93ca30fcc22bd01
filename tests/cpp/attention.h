// Block-sparse attention calls for tests: inputs made from a case, guarded outputs, and a run through the C ABI.
#ifndef TESSERA_TESTS_ATTENTION_H_
#define TESSERA_TESTS_ATTENTION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../cases/block_attn.h"
#include "bounds.h"
#include "random.h"
#include "reference/reference.h"
#include "tensors.h"
#include "tessera/tessera.h"

namespace tessera::cases {

inline void PrintTo(const BlockAttn& c, std::ostream* os) { *os << name(c); }

}  // namespace tessera::cases

namespace tessera::test {

using Args = tessera_block_sparse_gqa_prefill_args;

struct Output {
  TestTensor out, lse;
  bool operator==(const Output& other) const {
    return out.all_bits() == other.out.all_bits() && lse.all_bits() == other.lse.all_bits();
  }
};

struct State {
  TestTensor o, l, m;
  bool operator==(const State& other) const {
    return o.all_bits() == other.o.all_bits() && l.all_bits() == other.l.all_bits() &&
           m.all_bits() == other.m.all_bits();
  }
};

inline void expect_clean(const TestTensor& output, const char* name) {
  EXPECT_TRUE(output.all_written()) << name << " is not fully written";
  EXPECT_TRUE(output.gaps_untouched()) << name << ": bytes outside the view were written";
}

struct Attention {
  cases::BlockAttn shape;
  tessera_dtype dtype;
  TestTensor q, k, v, ids, q_offset;
  float scale = 1;
  bool with_lse = true;

  // What a call gets, without outputs.
  Args args() const {
    Args a = {};
    a.q = q;
    a.k = k;
    a.v = v;
    a.kv_indices = ids;
    a.block_size = shape.block;
    a.block_q = shape.block_q;
    a.mask = shape.causal ? TESSERA_MASK_CAUSAL : TESSERA_MASK_NONE;
    a.softmax_scale = shape.scale == cases::kDefaultScale ? nullptr : &scale;
    a.q_offset = q_offset;
    return a;
  }
  reference::Attention expected() const { return reference::attention(args()); }

  Output output() const {
    const Shape rows = {q.view().shape[0], q.view().shape[1], q.view().shape[2]};
    Shape out = rows;
    out.push_back(v.view().shape[3]);
    const bool gaps = shape.layout == cases::Layout::kStrided;
    return {TestTensor(q.view().dtype, out, gaps ? gappy_strides(out, 1) : dense_strides(out)),
            TestTensor(TESSERA_F32, rows, gaps ? gappy_strides(rows, 2) : dense_strides(rows))};
  }
  State state() const {
    const Output like = output();
    const Shape out(like.out.view().shape, like.out.view().shape + 4);
    const Shape strides(like.out.view().stride, like.out.view().stride + 4);
    return {TestTensor(TESSERA_F32, out, strides), like.lse.clone(), like.lse.clone()};
  }

  Args args_into(const Output& to) const {
    Args a = args();
    a.out = to.out;
    if (with_lse) a.lse = to.lse;
    return a;
  }
  Args args_into(const State& to) const {
    Args a = args();
    a.state_o = to.o;
    a.state_l = to.l;
    a.state_m = to.m;
    return a;
  }

  Output run(const tessera_context& context = {}) const {
    const Output to = output();
    const Args a = args_into(to);
    EXPECT_EQ(tessera_block_sparse_gqa_prefill(&a, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to.out, "out");
    if (with_lse) expect_clean(to.lse, "lse");
    return to;
  }
  State run_state(const tessera_context& context = {}) const {
    const State to = state();
    const Args a = args_into(to);
    EXPECT_EQ(tessera_block_sparse_gqa_prefill_state(&a, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to.o, "state_o");
    expect_clean(to.l, "state_l");
    expect_clean(to.m, "state_m");
    return to;
  }

  // ---- What a row sees, straight from the case -------------------------------------------------------------------

  int64_t position(int64_t b, int64_t t) const {
    const bool given = q_offset.view().ndim != 0;
    return t + (given ? static_cast<int64_t>(q_offset.get(b)) : shape.keys - shape.queries);
  }
  std::set<int64_t> listed(int64_t b, int64_t kv_head, int64_t t) const {
    const int64_t head = shape.per_head ? b * shape.kv_heads + kv_head : b;
    const int64_t first = (head * shape.lists() + t / shape.block_q) * shape.list_width();
    std::set<int64_t> blocks;
    for (int64_t w = 0; w < shape.list_width(); ++w) blocks.insert(static_cast<int64_t>(ids.get(first + w)));
    return blocks;
  }
  bool sees(int64_t b, int64_t kv_head, int64_t t, int64_t key) const {
    return (!shape.causal || key <= position(b, t)) && listed(b, kv_head, t).count(key / shape.block) != 0;
  }
  bool used(int64_t b, int64_t kv_head, int64_t key) const {
    for (int64_t t = 0; t < shape.queries; ++t) {
      if (sees(b, kv_head, t, key)) return true;
    }
    return false;
  }
  int64_t key_row(int64_t b, int64_t kv_head, int64_t key) const {
    return (b * shape.keys + key) * shape.kv_heads + kv_head;
  }
};

// ---- Making inputs
// ---------------------------------------------------------------------------------------------------

inline void fill_list(const cases::BlockAttn& c, Random& random, int64_t* list) {
  const int64_t width = c.list_width();
  const int64_t blocks = c.blocks();
  std::vector<int64_t> order(static_cast<size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[static_cast<size_t>(random.below(i))]);
  const int64_t invalid[] = {-1, INT_MIN, INT_MAX, blocks, -blocks - 1, blocks + 7};
  for (int64_t w = 0; w < width; ++w) {
    switch (c.ids) {
      case cases::Ids::kAll: list[w] = order[static_cast<size_t>(w)]; break;
      case cases::Ids::kInvalid: list[w] = random.pick(invalid); break;
      case cases::Ids::kMixed:
        list[w] = blocks == 0 || random.chance(4) ? random.pick(invalid) : random.below(blocks);
        break;
      case cases::Ids::kPacked: list[w] = w < blocks ? order[static_cast<size_t>(w)] : -1; break;
    }
  }
  if (c.ids != cases::Ids::kPacked) return;
  const int64_t count = random.below(std::min(width, blocks) + 1);
  std::sort(list, list + count);
  std::fill(list + count, list + width, -1);
}

inline TestTensor make_ids(const cases::BlockAttn& c, Random& random) {
  Shape shape = {c.requests, c.lists(), c.list_width()};
  if (c.per_head) shape.insert(shape.begin() + 1, c.kv_heads);
  const bool broadcast = c.layout == cases::Layout::kBroadcast && c.requests > 1;
  TestTensor ids(TESSERA_I32, shape,
                 c.layout == cases::Layout::kStrided ? gappy_strides(shape, 2)
                 : broadcast                         ? broadcast_strides(shape, 0)
                                                     : dense_strides(shape));
  std::vector<int64_t> list(static_cast<size_t>(c.list_width()));
  for (int64_t i = 0; i < ids.elements(); i += c.list_width()) {
    fill_list(c, random, list.data());
    for (int64_t w = 0; w < c.list_width(); ++w) ids.set(i + w, static_cast<double>(list[static_cast<size_t>(w)]));
  }
  return ids;
}

inline Attention make_attention(const cases::BlockAttn& c, tessera_dtype dtype, uint64_t stream = 0) {
  Random random(stream);
  const auto tensor = [&](const Shape& shape, size_t broadcast_axis) {
    const Shape strides = c.layout == cases::Layout::kStrided     ? gappy_strides(shape, 1)
                          : c.layout == cases::Layout::kBroadcast ? broadcast_strides(shape, broadcast_axis)
                                                                  : dense_strides(shape);
    TestTensor t(dtype, shape, strides);
    t.fill_normal(random);
    return t;
  };
  Attention a;
  a.shape = c;
  a.dtype = dtype;
  a.scale = c.scale;
  a.q = tensor({c.requests, c.queries, c.heads(), c.dim}, 0);
  a.k = tensor({c.requests, c.keys, c.kv_heads, c.dim}, 2);
  a.v = tensor({c.requests, c.keys, c.kv_heads, c.dim_v}, 2);
  a.ids = make_ids(c, random);
  if (c.offset == cases::Offset::kPerRequest) {
    a.q_offset = TestTensor(TESSERA_I32, {c.requests}, {c.layout == cases::Layout::kStrided ? 3 : 1});
    const int64_t offsets[] = {-c.queries / 2, c.keys / 2, c.keys + 5, -c.queries - 3};
    for (int64_t b = 0; b < c.requests; ++b) a.q_offset.set(b, static_cast<double>(offsets[b % 4]));
  }
  return a;
}

// ---- Variants
// --------------------------------------------------------------------------------------------------------

// Names of the variants that this build and CPU can run, best first.
inline std::vector<std::string> variants() {
  std::vector<std::string> names;
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    if (tessera_variant_available(i) != 0) names.push_back(tessera_variant_name(i));
  }
  return names;
}

// Those that multiply pairs of bf16 take nothing else.
inline bool of_pairs(const std::string& variant) { return variant.ends_with("bf16"); }

inline bool takes(const std::string& variant, tessera_dtype dtype) {
  return !of_pairs(variant) || dtype == TESSERA_BF16;
}

// nullptr is the library's own choice.
inline tessera_context with_variant(const char* variant) {
  tessera_context context = {};
  context.variant = variant;
  return context;
}

// Runs body(context) for each variant that takes the dtype.
template <class Body>
void for_each_variant(tessera_dtype dtype, const Body& body) {
  for (const std::string& variant : variants()) {
    if (!takes(variant, dtype)) continue;
    SCOPED_TRACE(variant + " " + dtype_name(dtype));
    body(with_variant(variant.c_str()));
  }
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_ATTENTION_H_
