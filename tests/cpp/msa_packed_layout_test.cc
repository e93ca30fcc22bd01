// Pages in the packed layout give the same bits as row-major ones. Slots without a key, and what no slot or feature owns, are
// NaN; some pages do not exist.
#include <gtest/gtest.h>

#include <climits>
#include <limits>
#include <string>
#include <vector>

#include "attention_bits.h"
#include "kv_cache.h"
#include "msa_attention.h"

namespace tessera::test {
namespace {

using cases::Ids;
using cases::Layout;
using cases::Offset;

// Pages smaller and larger than blocks, D and Dv even and odd.
std::vector<MsaCase> sizes() {
  std::vector<MsaCase> all;
  for (const int64_t page : {1, 3, 16, 24, 64, 128, 256}) {
    for (const int64_t block : {1, 24, 64, 128, 200}) {
      const bool odd = (page + block) % 2 != 0;
      all.push_back(
          {.rows = {9, 1}, .keys = {290, 300}, .dim = odd ? 17 : 16, .dim_v = 24, .block = block, .page = page});
      all.push_back({.rows = {4, 1, 70},
                     .keys = {33, 140, 150},
                     .kv_heads = 1,
                     .group = 5,
                     .dim = 24,
                     .dim_v = odd ? 8 : 9,
                     .block = block,
                     .width = 3,
                     .page = page,
                     .causal = page != 24,
                     .offset = odd ? Offset::kPerRequest : Offset::kDefault,
                     .layout = odd ? Layout::kStrided : Layout::kDense});
    }
  }
  return all;
}

// Wide groups at decode, several chunks of keys, prefill whose tiles share their blocks; pages that are panels already.
const MsaCase kModels[] = {
    {.rows = {1, 2},
     .keys = {2100, 129},
     .kv_heads = 1,
     .group = 16,
     .dim = 64,
     .dim_v = 64,
     .block = 128,
     .page = 128,
     .ids = Ids::kAll},
    {.rows = {2, 1},
     .keys = {333, 190},
     .kv_heads = 1,
     .group = 16,
     .dim = 128,
     .dim_v = 128,
     .block = 64,
     .page = 256,
     .ids = Ids::kAll},
    {.rows = {70}, .keys = {400}, .kv_heads = 1, .group = 16, .dim = 64, .dim_v = 64, .block = 64, .page = 64},
    {.rows = {40, 1}, .keys = {300, 77}, .group = 3, .dim = 32, .dim_v = 48, .block = 128, .page = 256},
    {.rows = {1, 70}, .keys = {501, 77}, .group = 3, .dim = 33, .dim_v = 48, .block = 64, .page = 128},
    {.rows = {1, 3}, .keys = {500, 77}, .kv_heads = 1, .group = 48, .dim = 127, .dim_v = 65, .block = 128, .page = 128},
};

struct Pages {
  TestTensor k, v;

  Pages(const TestTensor& row_major_k, const TestTensor& row_major_v, bool gaps)
      : k(packed_layout(row_major_k, false, gaps)), v(packed_layout(row_major_v, true, gaps)) {}
};

// Makes some entries name no page.
void lose_pages(TestTensor* table, int64_t pages) {
  const int64_t invalid[] = {-1, INT_MIN, INT_MAX, pages};
  for (int64_t i = 1; i < table->elements(); i += 5) table->set(i, static_cast<double>(invalid[i % 4]));
}

Output run_over(const Msa& call, const Pages& pages, const tessera_context& context) {
  const Output to = call.output();
  MsaArgs a = call.args_into(to);
  a.k = pages.k;
  a.v = pages.v;
  tessera_context part = context;
  for (int32_t i = 0; i < std::max(context.executor.num_parts, 1); ++i) {
    part.executor.part = i;
    EXPECT_EQ(tessera_msa_sparse_attention(&a, &part), TESSERA_OK) << tessera_last_error();
  }
  expect_clean(to.out, "out");
  expect_clean(to.lse, "lse");
  return to;
}

class MsaPackedLayout : public testing::TestWithParam<Choice> {
 protected:
  tessera_context context() const { return with_variant(GetParam().variant.c_str()); }

  void expect_same_bits(const MsaCase& c) const {
    SCOPED_TRACE(text(c));
    Msa call = make_msa(c, GetParam().dtype);
    const Pages pages(call.k, call.v, c.layout == Layout::kStrided);
    EXPECT_EQ(run_over(call, pages, context()), call.run(context()));
    lose_pages(&call.table, call.k.view().shape[0]);
    EXPECT_EQ(run_over(call, pages, context()), call.run(context())) << "with pages that do not exist";
  }
};
INSTANTIATE_TEST_SUITE_P(Msa, MsaPackedLayout, testing::ValuesIn(choices(kFloats)),
                         [](const auto& test) { return test.param.name(); });

TEST_P(MsaPackedLayout, HasTheBitsOfRowMajorPages) {
  for (const MsaCase& c : sizes()) expect_same_bits(c);
}

TEST_P(MsaPackedLayout, HasTheBitsOfRowMajorPagesAtTheSizesOfModels) {
  for (const MsaCase& c : kModels) expect_same_bits(c);
}

TEST_P(MsaPackedLayout, HasTheSameBitsOnEveryExecutor) {
  for (const MsaCase& c : {kModels[0], kModels[3], sizes()[21]}) {
    SCOPED_TRACE(text(c));
    const Msa call = make_msa(c, GetParam().dtype);
    const Pages pages(call.k, call.v, false);
    const Output want = call.run(context());
    tessera_context other = context();
    for (const int32_t n : {1, 3}) {
      other.executor = {TESSERA_EXECUTOR_THREADS, n, 0, 0, nullptr, nullptr};
      EXPECT_EQ(run_over(call, pages, other), want) << n << " threads";
      other.executor = {TESSERA_EXECUTOR_PART, 0, 0, n, nullptr, nullptr};
      EXPECT_EQ(run_over(call, pages, other), want) << n << " parts";
    }
  }
}

// Lists for a block of queries, out and state.
TEST_P(MsaPackedLayout, PrefillHasTheBitsOfRowMajorPages) {
  for (const int64_t page : {1, 3, 24, 64, 128, 256}) {
    for (const int64_t block : {24, 64, 200}) {
      for (const bool odd : {false, true}) {
        const cases::BlockAttn c = {.requests = 2,
                                    .queries = odd ? 1 : 70,
                                    .keys = 290,
                                    .kv_heads = 2,
                                    .group = 3,
                                    .dim = odd ? 33 : 32,
                                    .dim_v = odd ? 24 : 25,
                                    .block = block,
                                    .block_q = 16,
                                    .per_head = odd};
        SCOPED_TRACE(cases::name(c) + ", page " + std::to_string(page));
        Attention call = make_attention(c, GetParam().dtype);
        const std::vector<int64_t> lengths = {290, 201};
        const Paged k = in_pages(call.k, page, lengths, std::numeric_limits<double>::quiet_NaN(), odd);
        const Paged v = in_pages(call.v, page, lengths, std::numeric_limits<double>::quiet_NaN(), odd);
        const Pages pages(k.k, v.k, odd);
        const auto run_with = [&](const tessera_tensor& k_pages, const tessera_tensor& v_pages) {
          const Output to = call.output();
          const State state = call.state();
          const tessera_context ctx = context();
          Args a = call.args();
          a.k = k_pages;
          a.v = v_pages;
          a.page_table = k.page_table;
          a.seqused_k = k.seqused_k;
          Args b = a;
          a.out = to.out;
          a.lse = to.lse;
          b.state_o = state.o;
          b.state_l = state.l;
          b.state_m = state.m;
          EXPECT_EQ(tessera_block_sparse_gqa_prefill(&a, &ctx), TESSERA_OK) << tessera_last_error();
          EXPECT_EQ(tessera_block_sparse_gqa_prefill_state(&b, &ctx), TESSERA_OK) << tessera_last_error();
          return std::pair(to, state);
        };
        const auto want = run_with(k.k, v.k), got = run_with(pages.k, pages.v);
        EXPECT_TRUE(got.first == want.first);
        EXPECT_TRUE(got.second == want.second);
      }
    }
  }
}

// The oracle reads both layouts, and does not see what the row-major one has no place for.
TEST(MsaPackedLayoutOracle, ReadsTheSameNumbers) {
  const std::vector<MsaCase> all = sizes();
  for (const tessera_dtype dtype : kFloats) {
    for (size_t i = 0; i < all.size(); i += 7) {
      const MsaCase& c = all[i];
      SCOPED_TRACE(text(c));
      Msa call = make_msa(c, dtype);
      const Pages pages(call.k, call.v, c.layout == Layout::kStrided);
      lose_pages(&call.table, call.k.view().shape[0]);
      const reference::Attention want = call.expected();
      MsaArgs a = call.args();
      a.k = pages.k;
      a.v = pages.v;
      const reference::Attention got = reference::attention(a);
      EXPECT_TRUE(got.out == want.out && got.lse == want.lse && got.spread == want.spread && got.reach == want.reach);
    }
  }
}

// What append_kv writes is what attention reads: keys that lie packed in a row, key by key into pages.
TEST(MsaPackedLayoutAppended, HasTheBitsOfPackedKeys) {
  for (const tessera_dtype dtype : kFloats) {
    for (const int64_t page : {3, 16, 128}) {
      const MsaCase c = {.rows = {1, 20}, .keys = {130, 300}, .group = 3, .dim = 33, .dim_v = 17, .page = page};
      SCOPED_TRACE(text(c) + ", " + dtype_name(dtype));
      MsaCase as_packed = c;
      as_packed.page = 0;
      const Msa packed = make_msa(as_packed, dtype), paged = in_pages(packed, page);
      const int64_t max_pages = paged.table.view().shape[1];
      std::vector<int64_t> slots;
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t key = 0; key < packed.keys_of(b); ++key) {
          const auto at = static_cast<int64_t>(paged.table.get(b * max_pages + key / page));
          slots.push_back(at * page + key % page);
        }
      }
      Pages pages(paged.k, paged.v, false);
      pages.k.clear();
      pages.v.clear();
      const TestTensor to = ints(slots);
      const tessera_append_kv_args a = {packed.k, packed.v, to, pages.k, pages.v};
      ASSERT_EQ(tessera_append_kv(&a, nullptr), TESSERA_OK) << tessera_last_error();
      EXPECT_EQ(run_over(paged, pages, {}), packed.run());
    }
  }
}

}  // namespace
}  // namespace tessera::test
