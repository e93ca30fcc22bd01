// Attention over packed rows and packed or paged keys against the oracle, within the accuracy contract.
#include "msa_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tessera::test {
namespace {

using cases::Ids;
using cases::Layout;
using cases::Offset;

// Small calls that together touch every path: run on every variant.
const MsaCase kSmoke[] = {
    {.rows = {1}, .keys = {1}, .kv_heads = 1, .group = 1, .dim = 8, .dim_v = 8, .block = 1, .width = 1},
    {.rows = {33}, .keys = {129}, .gap = 3, .layout = Layout::kStrided},
    {.rows = {33}, .keys = {129}, .page = 24, .layout = Layout::kStrided},
    {.rows = {5, 0, 17, 1}, .keys = {40, 7, 129, 300}, .group = 3, .gap = 2, .offset = Offset::kPerRequest},
    {.rows = {5, 3, 17, 0, 1}, .keys = {40, 0, 129, 64, 300}, .group = 3, .page = 16, .offset = Offset::kPerRequest},
    {.rows = {70, 3}, .keys = {90, 200}, .layout = Layout::kBroadcast},
    // Prefill and decode in one call; decode with several chunks of keys.
    {.rows = {130, 1, 2, 5}, .keys = {130, 2300, 257, 2100}, .block = 128, .page = 128, .ids = Ids::kAll},
    {.rows = {1, 1},
     .keys = {4300, 65},
     .kv_heads = 1,
     .group = 16,
     .dim = 24,
     .dim_v = 40,
     .block = 100,
     .page = 48,
     .ids = Ids::kAll},
    {.rows = {40},
     .keys = {513},
     .kv_heads = 1,
     .group = 16,
     .dim = 128,
     .dim_v = 128,
     .block = 128,
     .page = 128,
     .ids = Ids::kPacked},
    {.rows = {3, 4}, .keys = {300, 20}, .group = 48, .dim = 8, .dim_v = 72, .block = 129, .width = 3, .page = 100},
    {.rows = {20, 20}, .keys = {20, 30}, .page = 3, .ids = Ids::kInvalid},
    {.rows = {20, 6}, .keys = {50, 9}, .width = 0},
    {.rows = {50, 9}, .keys = {20, 3}, .block = 7, .width = 3, .page = 1},
    {.rows = {64}, .keys = {200}, .page = 10, .causal = false, .layout = Layout::kStrided},
    {.rows = {}, .keys = {}, .gap = 2},
    {.rows = {}, .keys = {}, .page = 8},
    {.rows = {0, 0}, .keys = {5, 0}, .page = 4},
    {.rows = {4, 3}, .keys = {0, 0}, .gap = 1},
};

// Each axis through its values, the others small.
std::vector<MsaCase> sweeps() {
  std::vector<MsaCase> all;
  for (int64_t page : {1, 3, 16, 24, 64, 128, 256}) {
    for (int64_t block : {1, 8, 24, 64, 128, 200}) {
      all.push_back({.rows = {9, 1}, .keys = {290, 513}, .block = block, .width = 5, .page = page});
    }
  }
  for (int64_t group : {1, 3, 5, 16, 48, 64}) {
    all.push_back({.rows = {21, 1, 3}, .keys = {150, 300, 33}, .group = group, .block = 64, .page = 16});
    all.push_back({.rows = {70}, .keys = {150}, .group = group, .block = 24, .gap = 1});
  }
  for (const cases::Dims& d :
       {cases::Dims{8, 8}, {8, 256}, {24, 40}, {64, 64}, {80, 72}, {128, 64}, {256, 8}, {256, 256}}) {
    all.push_back({.rows = {9, 2}, .keys = {141, 70}, .dim = d.dim, .dim_v = d.dim_v, .block = 64, .page = 24});
    all.push_back({.rows = {30}, .keys = {141}, .dim = d.dim, .dim_v = d.dim_v, .block = 40});
  }
  for (int64_t rows : {1, 2, 3, 4, 5}) {  // decode, and speculative decode
    const std::vector<int64_t> each(5, rows);
    all.push_back({.rows = each, .keys = {1, 5, 128, 129, 2200}, .block = 128, .width = 16, .page = 128});
    all.push_back({.rows = each, .keys = {4, 130, 2049, 6, 77}, .block = 64, .width = 33, .ids = Ids::kPacked});
  }
  for (int64_t width : {0, 1, 2, 17, 70}) {
    all.push_back({.rows = {40, 2}, .keys = {250, 260}, .block = 8, .width = width, .page = 16});
  }
  for (float scale : {0.0f, -0.3f, 1e-30f, 1.0f, 30.0f, 1e4f}) {
    all.push_back({.rows = {40, 2}, .keys = {250, 260}, .page = 16, .ids = Ids::kAll, .scale = scale});
  }
  return all;
}

// Any mixture of everything.
std::vector<MsaCase> mixtures(int count) {
  Random random(2000);
  std::vector<MsaCase> all;
  for (int i = 0; i < count; ++i) {
    MsaCase c;
    c.rows.clear();
    c.keys.clear();
    for (int64_t left = random.below(6); left > 0; --left) {
      c.rows.push_back(random.chance(3) ? random.below(90) : random.below(6));
      c.keys.push_back(random.chance(5) ? 0 : random.below(400));
    }
    const int64_t pages[] = {0, 0, 1, 3, 16, 24, 64, 128, 256}, blocks[] = {1, 8, 24, 64, 128, 200};
    const int64_t groups[] = {1, 2, 3, 5, 16}, dims[] = {8, 16, 24, 64, 72, 128};
    c.kv_heads = 1 + random.below(3);
    c.group = random.pick(groups);
    c.dim = random.pick(dims);
    c.dim_v = random.pick(dims);
    c.block = random.pick(blocks);
    c.width = random.below(7);
    c.page = random.pick(pages);
    c.gap = random.below(3);
    c.causal = !random.chance(4);
    c.ids = static_cast<Ids>(random.below(3));
    c.offset = static_cast<Offset>(random.below(2));
    c.layout = static_cast<Layout>(random.below(3));
    all.push_back(c);
  }
  return all;
}

void check(const MsaCase& c, tessera_dtype dtype, const std::vector<std::string>& names) {
  const Msa call = make_msa(c, dtype);
  const reference::Attention want = call.expected();
  for (const std::string& name : names) {
    if (!takes(name, dtype)) continue;
    SCOPED_TRACE(name + " " + dtype_name(dtype));
    expect_within(call.run(with_variant(name.c_str())), dtype, want);
  }
}

class MsaEveryVariant : public testing::TestWithParam<MsaCase> {};
TEST_P(MsaEveryVariant, MatchesTheOracle) {
  for (tessera_dtype dtype : kFloats) check(GetParam(), dtype, variants());
}
INSTANTIATE_TEST_SUITE_P(Msa, MsaEveryVariant, testing::ValuesIn(kSmoke));

// The library's own choice of variant, one type after the other.
class MsaBestVariant : public testing::TestWithParam<MsaCase> {};
TEST_P(MsaBestVariant, MatchesTheOracle) {
  for (tessera_dtype dtype : kFloats) {
    const std::vector<std::string> names = variants();
    check(GetParam(), dtype, {*std::find_if(names.begin(), names.end(), [&](auto& n) { return takes(n, dtype); })});
  }
}
INSTANTIATE_TEST_SUITE_P(MsaSweep, MsaBestVariant, testing::ValuesIn(sweeps()));
INSTANTIATE_TEST_SUITE_P(MsaMixture, MsaBestVariant, testing::ValuesIn(mixtures(60)));

TEST(Msa, NeedsNoLse) {
  Msa call = make_msa(kSmoke[3], TESSERA_BF16);
  const Output with = call.run();
  call.with_lse = false;
  EXPECT_EQ(call.run().out.all_bits(), with.out.all_bits());
}

TEST(Msa, ReferenceBackendIsTheOracle) {
  tessera_context context = {};
  context.backend = TESSERA_BACKEND_REFERENCE;
  for (const MsaCase& c : kSmoke) {
    SCOPED_TRACE(text(c));
    const Msa call = make_msa(c, TESSERA_F16);
    const reference::Attention want = call.expected();
    const Output got = call.run(context);
    for (size_t i = 0; i < want.out.size(); ++i) {
      ASSERT_EQ(got.out.bits(static_cast<int64_t>(i)), reference::encode16(want.out[i], 5)) << "at " << i;
    }
    EXPECT_TRUE(log_within("lse", got.lse, TESSERA_F32, want.lse));
  }
}

TEST(Msa, DefaultsAreTheDocumentedOnes) {
  for (int64_t page : {0, 32}) {
    const Msa call =
        make_msa({.rows = {13, 2}, .keys = {300, 140}, .block = 128, .width = 2, .page = page}, TESSERA_F32);
    const Output want = call.run();
    const Output got = call.output();
    MsaArgs a = call.args_into(got);
    const float scale = 0.25f;  // 1 / sqrt(16)
    const TestTensor offset = ints({300 - 13, 140 - 2});
    a.block_size = 0;
    a.softmax_scale = &scale;
    a.sequences.q_offset = offset;
    ASSERT_EQ(tessera_msa_sparse_attention(&a, nullptr), TESSERA_OK) << tessera_last_error();
    EXPECT_EQ(got, want);
  }
}

TEST(Msa, EqualLengthsNeedNoCumulativeOnes) {
  for (int64_t page : {0, 24}) {
    for (int64_t rows : {1, 4, 70}) {
      const Msa call = make_msa({.rows = {rows, rows, rows}, .keys = {300, 0, 77}, .page = page}, TESSERA_BF16);
      const Output got = call.output();
      MsaArgs a = call.args_into(got);
      a.sequences.cu_seqlens_q = {};
      a.sequences.seqlen_q = rows;
      expect_within(call.run(), TESSERA_BF16, reference::attention(a));
      ASSERT_EQ(tessera_msa_sparse_attention(&a, nullptr), TESSERA_OK) << tessera_last_error();
      EXPECT_EQ(got, call.run());
    }
  }
}

}  // namespace
}  // namespace tessera::test
