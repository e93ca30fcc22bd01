// Bad values in cumulative lengths, lengths, page tables, lists and positions mean that rows or keys do not exist; and
// what does not exist, or is not seen, may hold NaN.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "msa_attention.h"

namespace tessera::test {
namespace {

using cases::Ids;

class MsaHostile : public testing::TestWithParam<std::string> {
 protected:
  tessera_context context() const { return with_variant(GetParam().c_str()); }
  std::vector<tessera_dtype> dtypes() const {
    if (!takes(GetParam(), TESSERA_F32)) return {TESSERA_BF16};
    return {TESSERA_BF16, TESSERA_F32};
  }
  // The outputs, as the oracle has them.
  Output checked(const Msa& call) const {
    const Output got = call.run(context());
    expect_within(got, call.dtype, call.expected());
    return got;
  }
};
INSTANTIATE_TEST_SUITE_P(Msa, MsaHostile, testing::ValuesIn(variants()), [](const auto& test) { return test.param; });

// Rows of a result in which every row is 0 and -inf.
void expect_empty(const Output& got, int64_t begin, int64_t end) {
  const int64_t heads = got.lse.view().shape[1], dim = got.out.view().shape[2];
  for (int64_t i = begin * heads; i < end * heads; ++i) {
    ASSERT_EQ(got.lse.get(i), -std::numeric_limits<double>::infinity()) << "row " << i / heads;
    for (int64_t d = 0; d < dim; ++d) ASSERT_EQ(got.out.bits(i * dim + d), 0u) << "row " << i / heads;
  }
}
void expect_full(const Output& got, int64_t begin, int64_t end) {
  const int64_t heads = got.lse.view().shape[1];
  for (int64_t i = begin * heads; i < end * heads; ++i) {
    ASSERT_TRUE(std::isfinite(got.lse.get(i))) << "row " << i / heads;
  }
}

// ---- Cumulative lengths ------------------------------------------------------------------------------------------------------

struct Cumulative {
  std::vector<int64_t> cu;
  std::vector<std::pair<int64_t, int64_t>> rows;  // of each request; all others are empty
};
const Cumulative kCumulative[] = {
    {{0, 5, 9, 12}, {{0, 5}, {5, 9}, {9, 12}}},
    {{2, 5, 5, 10}, {{2, 5}, {5, 5}, {5, 10}}},
    {{0, 5, 3, 12}, {{0, 5}, {}, {}}},  // decreases; the third begins before the first ends
    {{7, 9, 3, 12}, {{7, 9}, {}, {}}},
    {{0, 5, 13, 12}, {{0, 5}, {}, {}}},  // beyond the tensor, then decreases
    {{0, 5, INT_MAX, 12}, {{0, 5}, {}, {}}},
    {{-1, 5, 9, 12}, {{}, {5, 9}, {9, 12}}},
    {{INT_MIN, 5, INT_MIN, 12}, {{}, {}, {}}},
    {{INT_MIN, 0, 4, INT_MAX}, {{}, {0, 4}, {}}},
    {{9, 4, 8, 12}, {{}, {4, 8}, {8, 12}}},
    {{12, 12, 12, 12}, {{}, {}, {}}},
    {{13, 13, 0, 12}, {{}, {}, {0, 12}}},
    {{0, 12, 0, 12}, {{0, 12}, {}, {}}},  // all rows twice
    {{0, 12, 6, 12}, {{0, 12}, {}, {}}},
};

TEST_P(MsaHostile, CumulativeRows) {
  for (int64_t page : {0, 24}) {
    for (int64_t stride : {1, 5}) {
      for (const Cumulative& c : kCumulative) {
        SCOPED_TRACE(testing::PrintToString(c.cu));
        Msa call = make_msa({.rows = {5, 4, 3}, .keys = {150, 77, 30}, .group = 3, .page = page, .causal = false},
                            TESSERA_F32 == dtypes().back() ? TESSERA_F32 : TESSERA_BF16);
        for (int64_t i = 0; i < call.ids.elements(); ++i) call.ids.set(i, static_cast<double>(i % 2));
        call.cu_q = ints(c.cu, stride);
        const Output got = checked(call);
        int64_t begin = 0;
        for (const auto& [from, to] : c.rows) {
          if (from == to) continue;
          expect_empty(got, begin, from);
          expect_full(got, from, to);
          begin = to;
        }
        expect_empty(got, begin, 12);
      }
    }
  }
}

TEST_P(MsaHostile, CumulativeKeys) {
  const Cumulative cumulative[] = {
      {{0, 5, 3, 257}, {{0, 5}, {}, {3, 257}}},
      {{0, 258, 200, 257}, {{}, {}, {200, 257}}},
      {{-1, 5, INT_MAX, INT_MIN}, {{}, {}, {}}},
      {{0, 257, 0, 257}, {{0, 257}, {}, {0, 257}}},  // requests may share keys
      {{100, 200, 150, 250}, {{100, 200}, {}, {150, 250}}},
      {{257, 257, 257, 257}, {{}, {}, {}}},
  };
  for (const Cumulative& c : cumulative) {
    SCOPED_TRACE(testing::PrintToString(c.cu));
    Msa call = make_msa({.rows = {5, 4, 3}, .keys = {150, 77, 30}, .causal = false}, dtypes().back());
    for (int64_t i = 0; i < call.ids.elements(); ++i) call.ids.set(i, static_cast<double>(i % 4));
    call.cu_k = ints(c.cu, 2);
    const Output got = checked(call);
    for (int64_t b = 0; b < 3; ++b) {
      const auto [from, to] = c.rows[static_cast<size_t>(b)];
      (from == to ? expect_empty : expect_full)(got, call.first_row(b), call.first_row(b + 1));
    }
  }
}

// ---- Lengths and pages ---------------------------------------------------------------------------------------------------------

TEST_P(MsaHostile, LengthsOfPagedKeys) {
  for (int64_t page : {1, 16, 24}) {
    // The last entry of each row of the table is nobody's, so lengths that reach it find no keys there.
    Msa call = make_msa({.rows = {6, 6, 6, 6}, .keys = {96, 96, 96, 96}, .block = 24, .page = page, .ids = Ids::kAll},
                        dtypes().back());
    const int64_t capacity = call.table.view().shape[1] * page;
    for (const std::vector<int64_t>& used : std::vector<std::vector<int64_t>>{
             {0, 1, 95, 96}, {-1, INT_MIN, 23, 25}, {97, capacity, capacity + 1, INT_MAX}}) {
      SCOPED_TRACE(testing::PrintToString(used));
      call.used = ints(used, 3);
      // Some rows see every key that there is.
      call.q_offset = ints({90, 95, 1000, INT_MAX - 5}, 2);
      const Output got = checked(call);
      for (int64_t b = 0; b < 4; ++b) {
        (used[static_cast<size_t>(b)] <= 0 ? expect_empty : expect_full)(got, call.first_row(b), call.first_row(b + 1));
      }
    }
  }
}

// Keys behind an invalid page do not exist: the result is that of a call that masks them by other means.
TEST_P(MsaHostile, PagesThatDoNotExist) {
  for (int64_t block : {8, 24, 40}) {
    for (tessera_dtype dtype : dtypes()) {
      Msa call = make_msa(
          {.rows = {70, 3, 1}, .keys = {112, 200, 2400}, .group = 3, .block = block, .page = 16, .ids = Ids::kAll},
          dtype);
      const int64_t entries = call.table.view().shape[1], pages = call.k.view().shape[0];
      for (double bad :
           {-1.0, static_cast<double>(INT_MIN), static_cast<double>(pages), static_cast<double>(INT_MAX)}) {
        SCOPED_TRACE(testing::Message() << "block " << block << ", page " << bad);
        Msa holes = call;
        holes.table = call.table.clone();
        for (int64_t entry : {0, 2, 3, 6}) holes.table.set(entry, bad);  // also the last page
        for (int64_t entry : {5, 12}) holes.table.set(entries + entry, bad);
        for (int64_t entry = 0; entry < 140; ++entry) holes.table.set(2 * entries + entry, bad);
        const Output got = checked(holes);
        expect_full(got, 0, 74);
      }
      for (int64_t i = 0; i < call.table.elements(); ++i)
        call.table.set(i, i % 2 == 0 ? -1 : static_cast<double>(pages));
      expect_empty(checked(call), 0, 74);
    }
  }
}

TEST_P(MsaHostile, NoPagesAndEmptyPages) {
  Msa call = make_msa({.rows = {4, 2}, .keys = {33, 20}, .page = 8, .ids = Ids::kAll}, TESSERA_BF16);
  const auto resized = [&](int64_t pages, int64_t page_size, int64_t entries) {
    Msa small = call;
    small.k = TestTensor(TESSERA_BF16, {pages, 2, page_size, 16});
    small.v = TestTensor(TESSERA_BF16, {pages, 2, page_size, 16});
    small.table = TestTensor(TESSERA_I32, {2, entries});
    small.table.fill(0);
    return small;
  };
  expect_empty(checked(resized(0, 8, 6)), 0, 6);
  expect_empty(checked(resized(3, 0, 6)), 0, 6);
  expect_empty(checked(resized(3, 8, 0)), 0, 6);
  Msa none = resized(0, 8, 6);
  none.k = none.v = TestTensor();
  const Output to = call.output();
  MsaArgs a = none.args_into(to);
  a.k = a.v = {nullptr, TESSERA_BF16, 4, {0, 2, 8, 16}, {256, 128, 16, 1}};  // no page, no memory
  const tessera_context ctx = context();
  ASSERT_EQ(tessera_msa_sparse_attention(&a, &ctx), TESSERA_OK) << tessera_last_error();
  expect_empty(to, 0, 6);
}

// Several entries of the table, and several requests, may name one page; one entry may stand for those of all requests.
TEST_P(MsaHostile, SharedPagesAndEntries) {
  Msa call = make_msa({.rows = {9, 9}, .keys = {200, 200}, .block = 24, .page = 16, .ids = Ids::kAll}, dtypes().back());
  const int64_t entries = call.table.view().shape[1];
  for (int64_t i = 0; i < entries; ++i) call.table.set(entries + i, call.table.get(i % 5));
  checked(call);
  const Output got = call.output();
  MsaArgs a = call.args_into(got);
  for (tessera_tensor* t : {&a.sequences.page_table, &a.sequences.seqused_k, &a.q2k_indices}) t->stride[0] = 0;
  const tessera_context ctx = context();
  ASSERT_EQ(tessera_msa_sparse_attention(&a, &ctx), TESSERA_OK) << tessera_last_error();
  expect_within(got, call.dtype, reference::attention(a));
}

// ---- Ids and positions --------------------------------------------------------------------------------------------------------

TEST_P(MsaHostile, Ids) {
  for (int64_t page : {0, 10}) {
    Msa call = make_msa({.rows = {3, 1}, .keys = {150, 60}, .block = 16, .width = 6, .page = page}, dtypes().back());
    const auto lists = [&](const std::vector<int64_t>& list) {
      for (int64_t i = 0; i < call.ids.elements(); ++i) {
        call.ids.set(i, static_cast<double>(list[static_cast<size_t>(i) % list.size()]));
      }
      return checked(call);
    };
    const Output want = lists({1, 3, -1, -1, -1, -1});
    EXPECT_EQ(lists({-1, 3, INT_MIN, 1, 3, 1}), want);
    EXPECT_EQ(lists({INT_MAX, 1, 1, 1, -17, 3}), want);
    EXPECT_EQ(lists({3, 10, 11, 1 << 27, 1, INT_MIN}), want);  // 16 (1 << 27) is 2^31
    expect_empty(lists({-1, INT_MIN, INT_MAX, 10, 1 << 28, -16}), 0, 4);
  }
}

TEST_P(MsaHostile, Positions) {
  for (int64_t page : {0, 24}) {
    Msa call = make_msa({.rows = {5, 5, 5, 5, 5}, .keys = {40, 40, 40, 40, 3}, .page = page, .ids = Ids::kAll},
                        dtypes().back());
    call.q_offset = ints({-3, INT_MIN, INT_MAX, 40, -5}, 2);
    const Output got = checked(call);
    expect_empty(got, 0, 3);
    expect_full(got, 3, 5);
    expect_empty(got, 5, 10);
    expect_full(got, 10, 20);
    expect_empty(got, 20, 25);
    call.q_offset = {};  // more rows than keys: the first see none
    expect_empty(checked(call), 20, 22);
  }
}

// ---- Poison ---------------------------------------------------------------------------------------------------------------------

const MsaCase kPoisoned[] = {
    {.rows = {40, 2}, .keys = {150, 129}, .group = 3, .width = 3},
    {.rows = {40, 2}, .keys = {150, 129}, .group = 3, .width = 3, .page = 24},
    {.rows = {3, 100}, .keys = {2300, 100}, .block = 128, .width = 18, .page = 128},
    {.rows = {30, 1}, .keys = {70, 90}, .block = 40, .width = 1, .page = 16, .causal = false},
};

TEST_P(MsaHostile, PoisonInUnusedKeysChangesNoBit) {
  for (const MsaCase& c : kPoisoned) {
    for (tessera_dtype dtype : dtypes()) {
      SCOPED_TRACE(text(c) + " " + dtype_name(dtype));
      const Msa clean = make_msa(c, dtype);
      const Output want = clean.run(context());
      for (double poison : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        Msa dirty = clean;
        dirty.k = clean.k.clone();
        dirty.v = clean.v.clone();
        for (int64_t b = 0; b < c.requests(); ++b) {
          for (int64_t i = 0; i < clean.keys_of(b) * c.kv_heads; ++i) {
            const int64_t key = i / c.kv_heads, head = i % c.kv_heads;
            if (clean.used_key(b, head, key)) continue;
            fill_row(&dirty.k, clean.key_row(b, head, key), poison);
            fill_row(&dirty.v, clean.key_row(b, head, key), poison);
          }
        }
        EXPECT_EQ(dirty.run(context()), want) << poison;
      }
    }
  }
}

TEST_P(MsaHostile, PoisonReachesExactlyTheRowsThatSeeIt) {
  for (const MsaCase& c : kPoisoned) {
    const Msa clean = make_msa(c, dtypes().back());
    const Output want = clean.run(context());
    Random random(5);
    for (int repeat = 0; repeat < 12; ++repeat) {
      const int64_t b = random.below(c.requests()), head = random.below(c.kv_heads),
                    key = random.below(clean.keys_of(b));
      SCOPED_TRACE(testing::Message() << text(c) << ": request " << b << ", head " << head << ", key " << key);
      Msa dirty = clean;
      TestTensor& spoiled = repeat % 2 == 0 ? dirty.k : dirty.v;
      spoiled = spoiled.clone();
      fill_row(&spoiled, clean.key_row(b, head, key), std::nan(""));
      const Output got = dirty.run(context());
      for (int64_t i = 0; i < got.lse.elements(); ++i) {
        const int64_t row = i / c.heads(), t = row - clean.first_row(b);
        const bool hit =
            t >= 0 && t < clean.rows_of(b) && i % c.heads() / c.group == head && clean.sees(b, head, t, key);
        for (int64_t d = i * c.dim_v; d < (i + 1) * c.dim_v; ++d) {
          ASSERT_TRUE(hit ? std::isnan(got.out.get(d)) : got.out.bits(d) == want.out.bits(d)) << "row " << row;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
