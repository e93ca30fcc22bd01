// Selection calls for tests: the two selectors behind one interface, inputs made from a case, guarded indices.
#ifndef TESSERA_TESTS_SELECT_H_
#define TESSERA_TESTS_SELECT_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention.h"
#include "selection.h"

namespace tessera::test {

enum class Selector { kMass, kMoba };
inline constexpr Selector kSelectors[] = {Selector::kMass, Selector::kMoba};

inline const char* selector_name(Selector s) { return s == Selector::kMass ? "mass" : "moba"; }

// moba has no use for pairs of bf16: it multiplies sums of keys.
inline bool takes(Selector s, const std::string& variant, tessera_dtype dtype) {
  return takes(variant, dtype) && !(s == Selector::kMoba && of_pairs(variant));
}

// The arguments of mass_select hold those of moba_select.
using SelectArgs = tessera_mass_select_args;

inline tessera_moba_select_args moba_args(const SelectArgs& a) {
  return {a.q,           a.k,        a.topk,       a.block_size, a.block_q, a.local_blocks,
          a.init_blocks, a.q_offset, a.page_table, a.seqused_k,  a.indices};
}
inline tessera_status select(Selector s, const SelectArgs& a, const tessera_context* context) {
  if (s == Selector::kMass) return tessera_mass_select(&a, context);
  const tessera_moba_select_args moba = moba_args(a);
  return tessera_moba_select(&moba, context);
}
inline size_t select_workspace_size(Selector s, const SelectArgs& a, const tessera_context* context) {
  size_t bytes = 0;
  const tessera_moba_select_args moba = moba_args(a);
  const tessera_status status = s == Selector::kMass ? tessera_mass_select_workspace_size(&a, context, &bytes)
                                                     : tessera_moba_select_workspace_size(&moba, context, &bytes);
  EXPECT_EQ(status, TESSERA_OK) << tessera_last_error();
  return bytes;
}
inline reference::Selection select_oracle(Selector s, const SelectArgs& a) {
  return s == Selector::kMass ? reference::mass_select(a) : reference::moba_select(moba_args(a));
}

struct SelectCase {
  int64_t requests = 1;
  int64_t queries = 40;
  int64_t keys = 150;
  int64_t kv_heads = 1;
  int64_t group = 2;
  int64_t dim = 16;
  int64_t topk = 4;
  int64_t block = 16;
  int64_t block_q = 16;
  int64_t stride = 4;
  int64_t local = 1;
  int64_t init = 1;
  cases::Offset offset = cases::Offset::kDefault;
  cases::Layout layout = cases::Layout::kDense;
  float scale = cases::kDefaultScale;

  int64_t lists() const { return (queries + block_q - 1) / block_q; }
};

inline void PrintTo(const SelectCase& c, std::ostream* out) {
  *out << "B " << c.requests << ", Sq " << c.queries << ", Sk " << c.keys << ", Hkv " << c.kv_heads << ", G " << c.group
       << ", D " << c.dim << ", K " << c.topk << ", bs " << c.block << ", block_q " << c.block_q << ", stride "
       << c.stride << ", local " << c.local << ", init " << c.init << ", offset " << static_cast<int>(c.offset)
       << ", layout " << static_cast<int>(c.layout) << ", scale " << c.scale;
}

struct Select {
  SelectCase shape;
  tessera_dtype dtype = TESSERA_F32;
  TestTensor q, k, q_offset;
  float scale = 1;

  Select(const SelectCase& c, tessera_dtype type, uint64_t stream = 0) : shape(c), dtype(type), scale(c.scale) {
    Random random(stream);
    const auto tensor = [&](const Shape& of, size_t broadcast_axis) {
      const Shape strides = c.layout == cases::Layout::kStrided     ? gappy_strides(of, 1)
                            : c.layout == cases::Layout::kBroadcast ? broadcast_strides(of, broadcast_axis)
                                                                    : dense_strides(of);
      TestTensor t(dtype, of, strides);
      t.fill_normal(random);
      return t;
    };
    q = tensor({c.requests, c.queries, c.kv_heads * c.group, c.dim}, 0);
    k = tensor({c.requests, c.keys, c.kv_heads, c.dim}, 2);
    if (c.offset == cases::Offset::kDefault) return;
    q_offset = TestTensor(TESSERA_I32, {c.requests}, {c.layout == cases::Layout::kStrided ? 3 : 1});
    const int64_t offsets[] = {c.keys / 2 + 3, -c.queries / 2, c.keys + 5, -c.queries - 3};
    for (int64_t b = 0; b < c.requests; ++b) q_offset.set(b, static_cast<double>(offsets[b % 4]));
  }

  SelectArgs args() const {
    SelectArgs a = {};
    a.q = q;
    a.k = k;
    a.topk = shape.topk;
    a.block_size = shape.block;
    a.block_q = shape.block_q;
    a.stride = shape.stride;
    a.local_blocks = shape.local;
    a.init_blocks = shape.init;
    a.softmax_scale = shape.scale == cases::kDefaultScale ? nullptr : &scale;
    a.q_offset = q_offset;
    return a;
  }
  TestTensor indices() const {
    const Shape of = {shape.requests, shape.kv_heads, shape.lists(), shape.topk};
    return {TESSERA_I32, of, shape.layout == cases::Layout::kStrided ? gappy_strides(of, 2) : dense_strides(of)};
  }
  TestTensor run(Selector s, const tessera_context& context = {}) const {
    const TestTensor to = indices();
    SelectArgs a = args();
    a.indices = to;
    EXPECT_EQ(select(s, a, &context), TESSERA_OK) << tessera_last_error();
    expect_clean(to, "indices");
    return to;
  }
  reference::Selection expected(Selector s) const { return select_oracle(s, args()); }
};

}  // namespace tessera::test

#endif  // TESSERA_TESTS_SELECT_H_
