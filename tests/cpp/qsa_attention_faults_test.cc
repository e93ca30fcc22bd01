// Small calls on which other implementations of attention over selected tokens have been wrong; each name says what went
// wrong, by number.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <string>
#include <vector>

#include "by_hand.h"
#include "lazy.h"
#include "qsa_attention.h"

namespace tessera::test {
namespace {

using Ids = std::vector<int64_t>;

class TokenFaults : public testing::TestWithParam<std::string> {
 protected:
  tessera_context context() const { return with_variant(GetParam().c_str()); }
  void expect_correct(const TokenAttn& call) const { expect_near_oracle(call, call.run(context()), call.expected()); }
  // Of every head.
  static void expect_row(const TokenAttn& call, const Output& got, int64_t row, double out, double lse) {
    const int64_t heads = call.shape.heads(), values = heads * call.shape.dim_v;
    for (int64_t i = row * values; i < (row + 1) * values; ++i) EXPECT_FLOAT_EQ(got.out.get(i), out) << i;
    for (int64_t h = row * heads; h < (row + 1) * heads; ++h) EXPECT_FLOAT_EQ(got.lse.get(h), lse) << h;
  }
};
INSTANTIATE_TEST_SUITE_P(Qsa, TokenFaults, testing::ValuesIn(variants()), [](const auto& test) { return test.param; });

// One row over `keys` tokens, whose scores are scores(token) and whose values are the token plus 1.
template <class Scores>
TokenAttn row_of(const Ids& ids, int64_t keys, const Scores& scores, TokenCase c = {}) {
  c.queries = 1;
  c.keys = keys;
  c.dim = c.dim_v = 8;
  c.width = static_cast<int64_t>(ids.size());
  c.scale = 0.125f;
  TokenAttn call(c, TESSERA_F32);
  call.q.fill(1);
  for (int64_t key = 0; key < keys; ++key) {
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      call.set_token(call.token(0, key), h, scores(key), static_cast<double>(key + 1));
    }
  }
  for (size_t w = 0; w < ids.size(); ++w) call.ids.set(static_cast<int64_t>(w), static_cast<double>(ids[w]));
  return call;
}
double zero(int64_t) { return 0; }

TEST_P(TokenFaults, F07_FutureTokensAreAttendedTo) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  TokenAttn call = row_of({0, 1, 2, 3, 4, 5, 6, 7, 12, 15}, 16, [](int64_t key) { return key > 5 ? 50 : 0; });
  call.positions = i32({1, 1}, {5});
  expect_row(call, call.run(context()), 0, 3.5, std::log(6));
}

TEST_P(TokenFaults, F08_NothingToSelect) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (int position : {0, 1, 2}) {
    Ids tail = {-1, -1, -1, -1, -1, -1, -1};
    for (int i = 0; i <= position; ++i) tail[static_cast<size_t>(i)] = i;
    TokenAttn call = row_of(tail, 16, zero);
    call.positions = i32({1, 1}, {double(position)});
    expect_row(call, call.run(context()), 0, 1 + position / 2.0, std::log(position + 1));
  }
}

TEST_P(TokenFaults, F10_ALeadingMaskedChunkPoisonsTheRow) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (size_t masked : {16, 32, 64, 128, 512, 600, 2048}) {
    for (int64_t splits : {0, 1, 2, 64}) {
      Ids ids(masked, -1);
      ids.push_back(3);
      const TokenAttn call = row_of(ids, 8, [](int64_t key) { return key - 7; }, {.splits = splits});
      expect_row(call, call.run(context()), 0, 4, -4);
    }
  }
}

TEST_P(TokenFaults, F11_EmptyPartsMergeToNan) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (int64_t splits : {1, 2, 64}) {
    const TokenAttn none = row_of(Ids(600, -1), 8, zero, {.splits = splits});
    expect_row(none, none.run(context()), 0, 0, -kInf);
    const TokenAttn few = row_of({-1, 5, -1, 5, -1, 5}, 8, zero, {.splits = splits});
    expect_row(few, few.run(context()), 0, 6, std::log(3));
  }
}

TEST_P(TokenFaults, F13_TheLseOfOneKeyIsItsScore) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (double score : {0.0, 1.0, -3.25, 80.0, -1000.0, 1e4}) {
    const TokenAttn call = row_of({0}, 1, [=](int64_t) { return score; });
    expect_row(call, call.run(context()), 0, 1, score);
  }
}

// Pages of 1,077,120 and of 65,536 bytes, so far apart that 32 bits count neither bytes nor elements.
TEST_P(TokenFaults, F14_PageTimesStrideWraps) {
  struct Cache {
    int64_t stride, pages;  // elements
    std::vector<double> ids;
  };
  for (const Cache& c : {Cache{538560, 7025, {1994, 7024}}, Cache{32768, 65537, {32768, 65536}}}) {
    const Lazy k(static_cast<size_t>(c.stride * c.pages * 2)), v(k.bytes);
    if (k.data == MAP_FAILED || v.data == MAP_FAILED) GTEST_SKIP() << "16 GiB of address space are not to be had";
    const TokenAttn call({.queries = 2, .keys = 16, .dim_v = 24, .form = TokenForm::kPaged, .page_size = 8},
                         TESSERA_BF16);
    const Output want = call.run(context()), got = call.output();
    TokenArgs args = call.args_into(got);
    const TestTensor table = i32({1, 2}, c.ids);
    args.page_table = table;
    args.k = {k.data, TESSERA_BF16, 4, {c.pages, 8, 2, 24}, {c.stride, 48, 24, 1}};
    args.v = {v.data, TESSERA_BF16, 4, {c.pages, 8, 2, 24}, {c.stride, 48, 24, 1}};
    for (int64_t key = 0; key < 16; ++key) {
      const auto page = static_cast<int64_t>(c.ids[static_cast<size_t>(key / 8)]);
      for (int64_t i = 0; i < 48; ++i) {
        const int64_t from = call.token(0, key) * 48 + i, to = (page * 8 + key % 8) * 48 + i;
        reference::View(args.k).set(to, call.k.get(from));
        reference::View(args.v).set(to, call.v.get(from));
      }
    }
    const tessera_context with = context();
    ASSERT_EQ(tessera_qsa_sparse_attention(&args, &with), TESSERA_OK) << tessera_last_error();
    EXPECT_EQ(got, want);
  }
}

// Rows of q, of its list, of its gate and of the results that begin 2^31 elements apart.
TEST_P(TokenFaults, F16_RowOffsetsOverflow) {
  const int64_t apart = int64_t{1} << 31;
  const auto bytes = static_cast<size_t>(2 * apart * 2 + 4096);
  const Lazy q(bytes), gate(bytes), out(bytes), ids(2 * bytes), lse(2 * bytes);
  for (const Lazy* memory : {&q, &gate, &out, &ids, &lse}) {
    if (memory->data == MAP_FAILED) GTEST_SKIP() << "56 GiB of address space are not to be had";
  }
  const TokenAttn call({.queries = 3, .gate = Gate::kFeatures}, TESSERA_BF16);
  const Output want = call.run(context());
  TokenArgs args = call.args();
  args.q = {q.data, TESSERA_BF16, 4, {1, 3, 6, 24}, {0, apart, 24, 1}};
  args.gate = {gate.data, TESSERA_BF16, 4, {1, 3, 6, 16}, {0, apart, 16, 1}};
  args.token_indices = {ids.data, TESSERA_I32, 3, {1, 3, 40}, {0, apart, 1}};
  args.out = {out.data, TESSERA_BF16, 4, {1, 3, 6, 16}, {0, apart, 16, 1}};
  args.lse = {lse.data, TESSERA_F32, 3, {1, 3, 6}, {0, apart, 1}};
  reference::View(args.q).set_values(call.q.values().values());
  reference::View(args.gate).set_values(call.gate.values().values());
  reference::View(args.token_indices).set_values(call.ids.values().values());
  const tessera_context with = context();
  ASSERT_EQ(tessera_qsa_sparse_attention(&args, &with), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(reference::View(args.out).values(), want.out.values().values());
  EXPECT_EQ(reference::View(args.lse).values(), want.lse.values().values());
}

TEST_P(TokenFaults, F25_GarbageFromTheFirstTokenAfterPageOne) {
  for (int64_t page : {8, 16, 24, 32, 64}) {
    for (int64_t keys : {page - 1, page, page + 1}) {
      for (const Lists lists : {Lists::kMixed, Lists::kBlocks}) {
        expect_correct(TokenAttn(
            {.queries = 2, .keys = keys, .width = 67, .lists = lists, .form = TokenForm::kPaged, .page_size = page},
            TESSERA_BF16));
      }
    }
  }
}

TEST_P(TokenFaults, F26_NeedlesAreMissedInLongContexts) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (int64_t tokens : {131072, 262144}) {
    const int64_t needle = tokens / 2 + 77;
    Ids ids;
    for (int64_t i = 0; i < 2048; ++i) ids.push_back(i / 4 * (tokens / 512) + i % 4);
    ids.insert(ids.begin() + 1500, needle);
    const TokenAttn call = row_of(ids, tokens, [=](int64_t key) { return key == needle ? 40 : 0; },
                                  {.kv_heads = 1, .group = 1, .form = TokenForm::kPaged, .page_size = 64});
    expect_row(call, call.run(context()), 0, static_cast<double>(needle + 1), 40);
  }
}

TEST_P(TokenFaults, F28_EmptyBatches) {
  for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPacked, TokenForm::kPaged}) {
    expect_correct(TokenAttn({.requests = 3, .rows = Rows::kPacked, .rows_of = {0, 0, 0}, .form = form}, TESSERA_BF16));
    expect_correct(TokenAttn({.requests = 3, .queries = 8, .rows = Rows::kPacked, .rows_of = {3, 0, 5}, .form = form},
                             TESSERA_BF16));
    expect_correct(TokenAttn({.requests = 2, .form = form, .keys_of = {0, 0}}, TESSERA_BF16));
    expect_correct(TokenAttn({.keys = 0, .form = form}, TESSERA_BF16));
    expect_correct(TokenAttn({.width = 0, .form = form}, TESSERA_BF16));
  }
}

TEST_P(TokenFaults, F29_PositionsClaimMoreThanTheLength) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (int64_t length : {0, 1, 2, 5}) {
    TokenAttn call = row_of({0, 1, 2, 3, 114, 115}, 120, zero);
    call.positions = i32({1, 1}, {115});
    const TestTensor lens = ints({length});
    call.lens_k = lens;
    const double seen = static_cast<double>(std::min<int64_t>(length, 4));
    expect_row(call, call.run(context()), 0, seen == 0 ? 0 : (seen + 1) / 2, std::log(seen));
  }
}

TEST_P(TokenFaults, F35_AnInvalidPageIsReadAsPageZero) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (double bad : {-1.0, 99.0, double(INT_MAX), double(INT_MIN)}) {
    TokenAttn call = row_of({0, 9, 8, 17, 1, 31}, 32, zero, {.form = TokenForm::kPaged, .page_size = 8});
    for (int64_t slot = 0; slot < 8; ++slot) {
      for (int64_t h = 0; h < 2; ++h) call.set_token(slot, h, std::nan(""), std::nan(""));
    }
    for (int64_t token = 8; token < 16; ++token) {
      for (int64_t h = 0; h < 2; ++h) call.set_token(token, h, 0, static_cast<double>(token));
    }
    const double pages[] = {1, bad, bad, bad};
    for (int64_t i = 0; i < 4; ++i) call.page_table.set(i, pages[i]);
    expect_row(call, call.run(context()), 0, 8.5, kLog2);
  }
}

TEST_P(TokenFaults, F37_IndexZeroIsTakenForNull) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPacked, TokenForm::kPaged, TokenForm::kPhysical}) {
    const TokenAttn call = row_of({0}, 8, zero, {.rows = Rows::kLone, .form = form});
    expect_row(call, call.run(context()), 0, 1, 0);
  }
}

TEST_P(TokenFaults, F38_DuplicatesCollapse) {
  if (!takes(GetParam(), TESSERA_F32)) GTEST_SKIP() << "f32 values";
  for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPaged, TokenForm::kPhysical}) {
    for (int64_t splits : {0, 2, 3}) {
      const TokenAttn call = row_of({5, 5, 7}, 8, zero, {.rows = Rows::kLone, .form = form, .splits = splits});
      expect_row(call, call.run(context()), 0, (6 + 6 + 8) / 3.0, std::log(3));
    }
  }
}

TEST_P(TokenFaults, F40_ALayersViewIntoASharedPool) {
  const TokenAttn tight({.queries = 3, .form = TokenForm::kPaged, .page_size = 8}, TESSERA_BF16);
  const Output want = tight.run(context()), got = tight.output();
  TokenArgs args = tight.args_into(got);
  const auto pooled = [](const tessera_tensor& t) {
    const int64_t* const n = t.shape;
    TestTensor pool(TESSERA_BF16, {n[0], n[1], n[2], n[3]}, {n[1] * n[2] * n[3] + 24, n[2] * n[3], n[3], 1});
    pool.values().set_values(reference::View(t).values());
    return pool;
  };
  const TestTensor k = pooled(args.k), v = pooled(args.v);
  args.k = k;
  args.v = v;
  const tessera_context with = context();
  ASSERT_EQ(tessera_qsa_sparse_attention(&args, &with), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(got, want);
}

TEST_P(TokenFaults, F43_LowPrecisionPartsLoseSmallWeights) {
  for (tessera_dtype dtype : {TESSERA_BF16, TESSERA_F32}) {
    for (int64_t splits : {0, 1, 64}) {
      if (!takes(GetParam(), dtype)) continue;
      TokenAttn call({.queries = 1,
                      .keys = 16384,
                      .kv_heads = 1,
                      .group = 1,
                      .dim = 8,
                      .width = 16384,
                      .count = 16384,
                      .lists = Lists::kPacked,
                      .splits = splits,
                      .scale = 0.125f},
                     dtype);
      call.q.fill(1);
      call.set_token(9000, 0, 10, 1);
      expect_correct(call);
    }
  }
}

// Outputs are NaN before the call.
TEST_P(TokenFaults, F47_AMaskedRowsOutputIsLeftUnwritten) {
  for (const Rows rows : {Rows::kBatch, Rows::kMapped}) {
    TokenAttn call({.requests = 2, .rows = rows, .gate = Gate::kFeatures, .layout = cases::Layout::kStrided},
                   TESSERA_BF16);
    call.ids.fill(-1);
    const Output got = call.run(context());
    for (double x : got.out.values().values()) EXPECT_EQ(x, 0);
    for (double x : got.lse.values().values()) EXPECT_EQ(x, -kInf);
  }
}

}  // namespace
}  // namespace tessera::test
