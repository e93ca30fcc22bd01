// f32 queries over bf16 and f16 keys and values: q is not rounded to their type, and out is f32.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kv_cache.h"
#include "msa_attention.h"

namespace tessera::test {
namespace {

using cases::Ids;
using cases::Layout;

const MsaCase kCases[] = {
    {.rows = {33, 1}, .keys = {129, 70}, .gap = 3, .layout = Layout::kStrided},
    {.rows = {130, 1, 2, 5}, .keys = {130, 2300, 257, 2100}, .block = 128, .page = 128, .ids = Ids::kAll},
    {.rows = {5, 3, 17, 0, 1}, .keys = {40, 0, 129, 64, 300}, .group = 3, .dim = 17, .dim_v = 9, .page = 16},
    {.rows = {1, 1}, .keys = {600, 65}, .kv_heads = 1, .group = 16, .dim = 64, .dim_v = 64, .block = 64, .page = 64},
    {.rows = {70}, .keys = {300}, .causal = false, .ids = Ids::kAll, .scale = -0.3f},
};

// The same numbers as f32.
TestTensor widened(const TestTensor& t) {
  const tessera_tensor& v = t.view();
  TestTensor wide(TESSERA_F32, Shape(v.shape, v.shape + v.ndim), Shape(v.stride, v.stride + v.ndim));
  for (int64_t i = 0; i < t.elements(); ++i) wide.set(i, t.get(i));
  return wide;
}

// Numbers that neither 16-bit type has.
TestTensor precise(const TestTensor& t) {
  TestTensor wide = widened(t);
  for (int64_t i = 0; i < wide.elements(); ++i)
    wide.set(i, wide.get(i) * (1 + 0x1p-9 * static_cast<double>(i % 3 - 1)));
  return wide;
}

struct Choice {
  std::string variant;
  tessera_dtype keys;
};
std::vector<Choice> choices() {
  std::vector<Choice> all;
  for (const std::string& name : variants()) {
    for (const tessera_dtype dtype : {TESSERA_BF16, TESSERA_F16}) {
      if (!of_pairs(name)) all.push_back({name, dtype});
    }
  }
  return all;
}

class F32Queries : public testing::TestWithParam<Choice> {
 protected:
  tessera_dtype keys() const { return GetParam().keys; }
  tessera_context context() const { return with_variant(GetParam().variant.c_str()); }
};
INSTANTIATE_TEST_SUITE_P(Variants, F32Queries, testing::ValuesIn(choices()),
                         [](const auto& test) { return test.param.variant + "_" + dtype_name(test.param.keys); });

// Probabilities are f32 too, so the bound is that of f16 whatever the keys.
TEST_P(F32Queries, MatchTheOracle) {
  for (const MsaCase& c : kCases) {
    SCOPED_TRACE(text(c));
    Msa call = make_msa(c, keys());
    call.q = precise(call.q);
    expect_within(call.run(context()), TESSERA_F16, call.expected());
  }
}

TEST_P(F32Queries, OfNumbersThatTheKeysTypeHasGiveItsBits) {
  for (const MsaCase& c : kCases) {
    SCOPED_TRACE(text(c));
    Msa call = make_msa(c, keys());
    const Output narrow = call.run(context());
    call.q = widened(call.q);
    const Output wide = call.run(context());
    EXPECT_EQ(wide.lse.all_bits(), narrow.lse.all_bits());
    TestTensor rounded = narrow.out.clone();
    for (int64_t i = 0; i < rounded.elements(); ++i) rounded.set(i, wide.out.get(i));
    EXPECT_EQ(rounded.all_bits(), narrow.out.all_bits());
  }
}

TEST_P(F32Queries, ReadPackedPages) {
  for (const MsaCase& c : kCases) {
    if (c.page == 0) continue;
    SCOPED_TRACE(text(c));
    Msa call = make_msa(c, keys());
    call.q = precise(call.q);
    const Output to = call.output();
    const TestTensor k = packed_layout(call.k, false), v = packed_layout(call.v, true);
    MsaArgs a = call.args_into(to);
    a.k = k;
    a.v = v;
    const tessera_context with = context();
    ASSERT_EQ(tessera_msa_sparse_attention(&a, &with), TESSERA_OK) << tessera_last_error();
    EXPECT_EQ(to, call.run(with));
  }
}

TEST_P(F32Queries, PrefillMatchesTheOracle) {
  for (const bool shared : {false, true}) {
    Attention call =
        make_attention({.requests = 2, .queries = 70, .keys = 300, .group = 3, .per_head = !shared}, keys());
    call.q = precise(call.q);
    const reference::Attention want = call.expected();
    const Output got = call.run(context());
    EXPECT_TRUE(out_within(got.out, TESSERA_F16, want.out, want.spread, want.reach));
    EXPECT_TRUE(log_within("lse", got.lse, TESSERA_F16, want.lse, want.reach));
    const State state = call.run_state(context());
    EXPECT_TRUE(state_within(state.o, state.l, state.m, TESSERA_F16, want));
  }
}

TEST_P(F32Queries, ASingleBlockOfQueries) {
  const Attention call = make_attention({.queries = 40, .keys = 150, .group = 1, .block_q = 40}, keys());
  const TestTensor q = precise(call.q), out(TESSERA_F32, {1, 40, 16});
  const auto one_head = [](const tessera_tensor& t) {
    return tessera_tensor{t.data, t.dtype, 3, {1, t.shape[1], t.shape[3]}, {0, t.stride[1], 1}};
  };
  const tessera_tensor ids = {call.ids.view().data, TESSERA_I32, 1, {call.shape.list_width()}, {1}};
  ASSERT_EQ(call.shape.heads(), 1);
  const tessera_block_sparse_attention_single_q_args a = {
      one_head(q), one_head(call.k), one_head(call.v), ids, call.shape.block, TESSERA_MASK_CAUSAL, nullptr, {}, out,
      {}};
  const tessera_context with = context();
  ASSERT_EQ(tessera_block_sparse_attention_single_q(&a, &with), TESSERA_OK) << tessera_last_error();
  const reference::Attention want = reference::attention(a);
  EXPECT_TRUE(out_within(out, TESSERA_F16, want.out, want.spread, want.reach));
}

TEST(F32QueriesOracle, IsTheReferenceBackend) {
  tessera_context reference = {};
  reference.backend = TESSERA_BACKEND_REFERENCE;
  Msa call = make_msa(kCases[0], TESSERA_BF16);
  call.q = precise(call.q);
  const std::vector<double> want = call.expected().out;
  const std::vector<double> got = call.run(reference).out.values().values();
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], static_cast<double>(static_cast<float>(want[i]))) << i;
}

TEST(F32QueriesErrors, AreRefusedByName) {
  Msa call = make_msa(kCases[0], TESSERA_BF16);
  const auto refused = [&](tessera_status status, const std::string& message, const tessera_context& context) {
    const Output to = call.output();
    const MsaArgs a = call.args_into(to);
    EXPECT_EQ(tessera_msa_sparse_attention(&a, &context), status);
    EXPECT_EQ(std::string(tessera_last_error()), "msa_sparse_attention: " + message);
    EXPECT_TRUE(to.out.untouched());
  };
  const TestTensor narrow = call.q;
  call.q = precise(narrow);
  for (const std::string& name : variants()) {
    if (!of_pairs(name)) continue;
    refused(TESSERA_NOT_IMPLEMENTED, "variant " + name + " does not take float32 queries over bfloat16 keys",
            with_variant(name.c_str()));
  }
  call.v = widened(call.v);
  refused(TESSERA_TYPE_ERROR, "v is float32 but k is bfloat16; they have one dtype", {});
  call.k = widened(call.k);
  call.q = narrow;
  refused(TESSERA_TYPE_ERROR, "k is float32 but q is bfloat16; they have one dtype", {});
}

TEST(F32QueriesExplain, NamesAVariantThatTakesThem) {
  Msa call = make_msa(kCases[0], TESSERA_BF16);
  call.q = precise(call.q);
  const Output to = call.output();
  const MsaArgs a = call.args_into(to);
  char text[4096];
  ASSERT_EQ(tessera_msa_sparse_attention_explain(&a, nullptr, text, sizeof text), TESSERA_OK) << tessera_last_error();
  const std::string lines = text;
  EXPECT_NE(lines.find("variant: "), std::string::npos) << lines;
  for (const std::string& name : variants()) {
    if (!of_pairs(name)) continue;
    EXPECT_EQ(lines.find("variant: " + name), std::string::npos) << lines;
    EXPECT_NE(lines.find("variant " + name + " does not take float32 queries over bfloat16 keys"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::test
