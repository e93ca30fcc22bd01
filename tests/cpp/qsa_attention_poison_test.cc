// Masked means absent in QSA's attention: what no row attends to may hold anything, bad ids, pages and lengths are
// skipped, and a NaN that a row does attend to stays with it.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "by_hand.h"
#include "qsa_attention.h"

namespace tessera::test {
namespace {

const double kPoisons[] = {std::numeric_limits<double>::quiet_NaN(), kInf, -kInf};

class TokenPoison : public testing::TestWithParam<std::string> {
 protected:
  tessera_context context() const { return with_variant(GetParam().c_str()); }
  std::vector<tessera_dtype> dtypes() const {
    std::vector<tessera_dtype> all;
    for (tessera_dtype dtype : kFloats) {
      if (takes(GetParam(), dtype)) all.push_back(dtype);
    }
    return all;
  }
  void expect_correct(const TokenAttn& call) const { expect_near_oracle(call, call.run(context()), call.expected()); }
};
INSTANTIATE_TEST_SUITE_P(Qsa, TokenPoison, testing::ValuesIn(variants()), [](const auto& test) { return test.param; });

// Few of the tokens are attended to, in every form of keys.
std::vector<TokenCase> sparse_calls() {
  std::vector<TokenCase> all = {{.queries = 9, .keys = 700, .rows = Rows::kLone, .form = TokenForm::kPhysical}};
  for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPacked, TokenForm::kPaged}) {
    for (const Rows rows : {Rows::kBatch, Rows::kMapped}) {
      all.push_back({.requests = 3,
                     .queries = 4,
                     .keys = 300,
                     .rows = rows,
                     .form = form,
                     .page_size = 24,
                     .keys_of = {300, 129, 7},
                     .positions = rows == Rows::kBatch ? Positions::kInferred : Positions::kScattered,
                     .splits = rows == Rows::kBatch ? 0 : 3});
    }
  }
  for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPacked, TokenForm::kPaged}) {
    all.push_back({.requests = 3,
                   .queries = 70,
                   .keys = 200,
                   .width = 200,
                   .lists = Lists::kPrefix,
                   .form = form,
                   .keys_of = {200, 129, 70},
                   .positions = Positions::kScattered});
  }
  all.push_back({.queries = 3, .keys = 1500, .width = 700, .form = TokenForm::kPaged, .page_size = 3});
  return all;
}

// Tokens that nobody has, the rest of a page, pages of nobody and tokens on no list.
TEST_P(TokenPoison, InUnusedTokensChangesNoBit) {
  for (const TokenCase& c : sparse_calls()) {
    SCOPED_TRACE(testing::PrintToString(c));
    for (tessera_dtype dtype : dtypes()) {
      const TokenAttn call(c, dtype);
      const std::set<int64_t> used = call.used();
      const auto with = [&](double poison) {
        TokenAttn dirty = call;
        dirty.k = call.k.clone();
        dirty.v = call.v.clone();
        const int64_t tokens = call.k.elements() / (c.kv_heads * c.dim);
        for (int64_t token = 0; token < tokens; ++token) {
          if (used.count(token) != 0) continue;
          for (int64_t head = 0; head < c.kv_heads; ++head) dirty.set_token(token, head, poison, poison);
        }
        return dirty.run(context());
      };
      const Output want = with(0);
      for (double poison : kPoisons) EXPECT_EQ(with(poison), want) << poison;
    }
  }
}

TEST_P(TokenPoison, ReachesExactlyTheRowsThatAttendToIt) {
  const TokenCase c = {.queries = 7, .keys = 400, .width = 130};
  for (tessera_dtype dtype : dtypes()) {
    const TokenAttn clean(c, dtype);
    const Output want = clean.run(context());
    for (const bool in_k : {true, false}) {
      const auto bad = static_cast<int64_t>(clean.ids.get(6 * c.width + (in_k ? 10 : 100)));
      if (bad < 0 || bad >= c.keys) continue;  // as the seed has it
      TokenAttn dirty = clean;
      (in_k ? dirty.k : dirty.v) = (in_k ? clean.k : clean.v).clone();
      TestTensor& spoilt = in_k ? dirty.k : dirty.v;
      spoilt.set(dirty.head_at(spoilt, bad, 1) + 3, std::nan(""));
      const Output got = dirty.run(context());
      for (int64_t r = 0; r < 7 * c.heads(); ++r) {
        const int64_t t = r / c.heads(), h = r % c.heads();
        bool hit = false;
        for (int64_t w = 0; w < c.width; ++w) hit |= clean.ids.get(t * c.width + w) == static_cast<double>(bad);
        hit = hit && bad <= clean.position(t) && h / c.group == 1;
        if (hit && in_k) {
          EXPECT_TRUE(std::isnan(got.lse.get(r))) << r;
        } else {
          EXPECT_EQ(got.lse.bits(r), want.lse.bits(r)) << r;
        }
        for (int64_t d = 0; d < c.dim_v; ++d) {
          const int64_t i = r * c.dim_v + d;
          if (hit && (in_k || d == 3)) {
            EXPECT_TRUE(std::isnan(got.out.get(i))) << i;
          } else {
            EXPECT_EQ(got.out.bits(i), want.out.bits(i)) << i;
          }
        }
      }
    }
  }
}

TEST_P(TokenPoison, InAQueryOrAGateStaysInItsRow) {
  const TokenCase c = {.queries = 7, .gate = Gate::kHeads};
  for (tessera_dtype dtype : dtypes()) {
    const TokenAttn clean(c, dtype);
    const Output want = clean.run(context());
    for (const bool in_q : {true, false}) {
      TokenAttn dirty = clean;
      dirty.q = clean.q.clone();
      dirty.gate = clean.gate.clone();
      const int64_t bad = 5 * c.heads() + 2;
      in_q ? dirty.q.set(bad * c.dim + 7, std::nan("")) : dirty.gate.set(bad, std::nan(""));
      const Output got = dirty.run(context());
      for (int64_t r = 0; r < 7 * c.heads(); ++r) {
        if (r != bad || !in_q) {
          EXPECT_EQ(got.lse.bits(r), want.lse.bits(r)) << r;
        }
        for (int64_t i = r * c.dim_v; i < (r + 1) * c.dim_v; ++i) {
          if (r == bad) {
            EXPECT_TRUE(std::isnan(got.out.get(i))) << i;
          } else {
            EXPECT_EQ(got.out.bits(i), want.out.bits(i)) << i;
          }
        }
      }
      EXPECT_EQ(std::isnan(got.lse.get(bad)), in_q);
    }
  }
}

// Whatever its own row of q, its gate and its list hold.
TEST_P(TokenPoison, InRowsOfNobodyIsNotRead) {
  for (tessera_dtype dtype : dtypes()) {
    TokenAttn call({.requests = 3, .queries = 9, .rows = Rows::kMapped, .gate = Gate::kFeatures}, dtype);
    call.lens_q = call.ints({3}, [](int64_t b) { return 9 - 4 * b; });
    const Output want = call.run(context());
    const auto& c = call.shape;
    for (int64_t t = 0; t < call.rows(); ++t) {
      const int64_t b = call.request_of[static_cast<size_t>(t)];
      if (b >= 0 && call.index_of[static_cast<size_t>(t)] < 9 - 4 * b) continue;
      for (int64_t i = 0; i < c.heads() * c.dim; ++i) call.q.set(t * c.heads() * c.dim + i, std::nan(""));
      for (int64_t i = 0; i < c.heads() * c.dim_v; ++i) {
        EXPECT_EQ(want.out.get(t * c.heads() * c.dim_v + i), 0);
        call.gate.set(t * c.heads() * c.dim_v + i, kInf);
      }
      for (int64_t h = 0; h < c.heads(); ++h) EXPECT_EQ(want.lse.get(t * c.heads() + h), -kInf);
      for (int64_t w = 0; w < c.width; ++w) call.ids.set(t * c.width + w, static_cast<double>(w));
    }
    EXPECT_EQ(call.run(context()), want);
    expect_correct(call);
  }
}

// ---- Bad data is masked --------------------------------------------------------------------------------------------

TEST_P(TokenPoison, TokensBehindInvalidPagesDoNotExist) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (int64_t page_size : {1, 3, 24, 64}) {
    for (const Lists lists : {Lists::kMixed, Lists::kBlocks}) {
      TokenAttn call({.requests = 3,
                      .queries = 4,
                      .keys = 250,
                      .width = 203,
                      .lists = lists,
                      .form = TokenForm::kPaged,
                      .page_size = page_size},
                     TESSERA_F32);
      Random random(3);
      const int64_t invalid[] = {-1, INT_MIN, INT_MAX, call.k.view().shape[0]};
      for (int64_t i = 0; i < call.page_table.elements(); ++i) {
        if (random.chance(3)) call.page_table.set(i, static_cast<double>(random.pick(invalid)));
      }
      for (int64_t i = 0; i < call.pages.max_pages(); ++i) call.page_table.set(call.pages.entry(1, i), -7);
      expect_correct(call);
    }
  }
}

TEST_P(TokenPoison, LengthsAreCutToWhatThereIs) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPacked, TokenForm::kPaged}) {
    for (const Positions positions : {Positions::kInferred, Positions::kScattered}) {
      TokenAttn call({.requests = 5, .queries = 6, .keys = 160, .form = form, .positions = positions}, TESSERA_F32);
      const double lengths[] = {INT_MAX, INT_MIN, -1, 81, 0};
      call.k.fill(0.5);
      call.v.fill(0.25);
      call.lens_k = call.ints({5}, [&](int64_t b) { return lengths[b]; });
      expect_correct(call);
      call.lens_q = call.ints({5}, [&](int64_t b) { return lengths[4 - b]; });
      expect_correct(call);
    }
  }
}

TEST_P(TokenPoison, RequestsWithImpossibleBoundsAreEmpty) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  const std::vector<std::vector<double>> bounds = {{0, 6, 4, 12}, {-5, 6, 8, 12}, {2, 6, 6, 11},
                                                   {0, 6, 8, 13}, {5, 5, 5, 5},   {0, INT_MAX, INT_MIN, 12},
                                                   {12, 0, 0, 12}};
  for (const auto& rows : bounds) {
    for (const Rows form : {Rows::kPacked, Rows::kBoth}) {
      for (const Positions positions : {Positions::kInferred, Positions::kLast}) {
        TokenAttn call({.requests = 3, .queries = 4, .rows = form, .form = TokenForm::kPacked, .positions = positions},
                       TESSERA_F32);
        for (int64_t i = 0; i < 4; ++i) call.cu_q.set(i, rows[static_cast<size_t>(i)]);
        expect_correct(call);
        call.k.fill(0.5);
        call.v.fill(0.25);
        for (int64_t i = 0; i < 4; ++i) call.cu_k.set(i, 30 * rows[static_cast<size_t>(i)]);
        expect_correct(call);
      }
    }
  }
}

TEST_P(TokenPoison, RowsOutsideTheirRequestAreNobodys) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (const Positions positions : {Positions::kInferred, Positions::kLast}) {
    TokenAttn call({.requests = 3, .queries = 20, .rows = Rows::kBoth, .positions = positions}, TESSERA_F32);
    const double bounds[] = {3, 20, 45, 50};
    for (int64_t i = 0; i < 4; ++i) call.cu_q.set(i, bounds[i]);
    expect_correct(call);
  }
}

TEST_P(TokenPoison, HostileIdsAreSkipped) {
  for (tessera_dtype dtype : dtypes()) {
    for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPacked, TokenForm::kPaged, TokenForm::kPhysical}) {
      for (int64_t splits : {0, 1, 5}) {
        TokenAttn call({.queries = 3, .rows = Rows::kLone, .form = form, .splits = splits}, dtype);
        const double ids[] = {INT_MIN, INT_MAX, INT_MIN + 1, INT_MAX - 1, -1, 150, 151, 160, -150, 1 << 30};
        for (int64_t i = 0; i < call.ids.elements(); ++i) call.ids.set(i, ids[i % 10]);
        const Output none = call.run(context());
        for (double x : none.out.values().values()) EXPECT_EQ(x, 0);
        for (double x : none.lse.values().values()) EXPECT_EQ(x, -kInf);
        call.ids.set(17, 5);
        call.ids.set(call.ids.elements() - 1, 0);
        expect_correct(call);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
