// Small calls on which other implementations of MSA have been wrong; each name says what went wrong, by number.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attention_bits.h"
#include "by_hand.h"
#include "messages.h"
#include "msa_attention.h"

namespace tessera::test {
namespace {

using cases::Ids;

class MsaFaults : public testing::TestWithParam<std::string> {
 protected:
  tessera_context context() const { return with_variant(GetParam().c_str()); }
  // Heads of 32 features and blocks of 128 keys, unless a test says otherwise.
  static Msa make(const MsaCase& c) { return make_msa(c, TESSERA_BF16); }
  static Msa make(std::vector<int64_t> rows, std::vector<int64_t> keys, int64_t width, int64_t page = 0) {
    return make({.rows = std::move(rows),
                 .keys = std::move(keys),
                 .dim = 32,
                 .dim_v = 32,
                 .block = 128,
                 .width = width,
                 .page = page});
  }
  Output run(const Msa& call) const { return call.run(context()); }
  Output run(const MsaArgs& args, const Output& into) const {
    const tessera_context ctx = context();
    EXPECT_EQ(tessera_msa_sparse_attention(&args, &ctx), TESSERA_OK) << tessera_last_error();
    return into;
  }
  Output expect_correct(const Msa& call) const {
    const Output got = run(call);
    expect_within(got, call.dtype, call.expected());
    return got;
  }
};
INSTANTIATE_TEST_SUITE_P(Msa, MsaFaults, testing::ValuesIn(variants()), [](const auto& test) { return test.param; });

// One list for all rows and heads.
void set_lists(Msa* call, const std::vector<double>& list) {
  for (int64_t i = 0; i < call->ids.elements(); ++i) call->ids.set(i, list[static_cast<size_t>(i) % list.size()]);
}
// Rows [begin, end) of a call of one request that uses all its heads.
std::vector<uint32_t> rows_of(const Output& output, int64_t begin, int64_t end) {
  const std::vector<uint32_t> all = output.out.all_bits();
  const int64_t row = output.out.view().shape[1] * output.out.view().shape[2];
  return {all.begin() + begin * row, all.begin() + end * row};
}

TEST_P(MsaFaults, F02_RepeatedIdCountedTwice) {
  Msa call = make({1}, {200}, 16);
  std::vector<double> list(16, -1);
  list[0] = 0;
  set_lists(&call, list);
  const Output once = run(call);
  list[1] = 0;
  set_lists(&call, list);
  EXPECT_EQ(run(call), once);
}

TEST_P(MsaFaults, F04_F05_StridedIdsMisread) {
  for (int64_t rows : {1, 31, 32, 33, 64, 65}) {
    const Msa call = make({rows}, {rows + 200}, 4);
    TestTensor buffer(TESSERA_I32, {2, rows + 2, 9});
    tessera_tensor view = slice(slice(buffer, 1, 1, rows), 2, 3, 4);
    for (int64_t i = 0; i < call.ids.elements(); ++i) reference::View(view).set(i, call.ids.get(i));
    const Output got = call.output();
    MsaArgs a = call.args_into(got);
    a.q2k_indices = view;
    EXPECT_EQ(run(a, got), run(call)) << rows;
  }
}

TEST_P(MsaFaults, F07_GarbageInATailPage) {
  for (int64_t page : {128, 256}) {
    Msa call = make({3}, {129}, 2, page);
    set_lists(&call, {0, 1});
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t key = 129; key < 256; ++key) {  // of the page that holds key 128
        const int64_t row = call.key_row(0, head, 128) + key - 128;
        fill_row(&call.k, row, std::nan(""));
        fill_row(&call.v, row, std::nan(""));
      }
    }
    expect_correct(call);
  }
}

TEST_P(MsaFaults, F19_NoTokenMaskInTheLocalBlock) {
  for (int64_t position : {0, 5, 127, 128, 200}) {
    Msa call = make({1}, {256}, 2);
    set_lists(&call, {0, 1});
    call.q_offset = ints({position});
    const Output want = expect_correct(call);
    for (int64_t head = 0; head < 2; ++head) {
      fill_row(&call.k, call.key_row(0, head, position + 1), 50);
      fill_row(&call.v, call.key_row(0, head, position + 1), 1e30);
    }
    EXPECT_EQ(run(call), want) << position;
  }
}

TEST_P(MsaFaults, F20_RowsDependOnLaterOnes) {
  for (int64_t prefix : {0, 63, 64, 120, 128}) {
    Msa call = make({8}, {prefix + 8}, 2);
    set_lists(&call, {0, 1});
    const Output want = run(call);
    for (int64_t head = 0; head < 4; ++head) fill_row(&call.q, 7 * 4 + head, -3);
    for (int64_t head = 0; head < 2; ++head) {
      fill_row(&call.k, call.key_row(0, head, prefix + 7), 9);
      fill_row(&call.v, call.key_row(0, head, prefix + 7), 9);
    }
    EXPECT_EQ(rows_of(run(call), 0, 7), rows_of(want, 0, 7)) << prefix;
  }
}

TEST_P(MsaFaults, F22_ZeroTailKeysHaveWeight) {
  for (int64_t page : {0, 16, 64, 128}) {
    Msa call = make({2}, {65}, 1, page);
    set_lists(&call, {0});
    call.q.fill(1);
    for (int64_t i = 0; i < 65 * 2; ++i) {
      fill_row(&call.k, call.key_row(0, i % 2, i / 2), -1);
      fill_row(&call.v, call.key_row(0, i % 2, i / 2), 1);
    }
    const Output got = expect_correct(call);
    for (int64_t i = 0; i < got.out.elements(); ++i) ASSERT_EQ(got.out.get(i), 1) << page;
  }
}

TEST_P(MsaFaults, F23_LeadingEmptyRowsAreNaN) {
  Msa call = make({6}, {300}, 2);
  const Output want = run(call);
  for (int64_t i = 0; i < 4; ++i) call.ids.set(i % 2 + i / 2 * 12, -1);
  const Output got = expect_correct(call);
  EXPECT_EQ(rows_of(got, 0, 1), std::vector<uint32_t>(4 * 32));
  for (int64_t h = 0; h < 4; ++h) EXPECT_EQ(got.lse.get(h), -kInf);
  EXPECT_EQ(rows_of(got, 1, 6), rows_of(want, 1, 6));
}

TEST_P(MsaFaults, F25_F28_RowsOfOneRequestMeetKeysOfAnother) {
  for (int64_t page : {0, 128}) {
    expect_correct(make({1, 3}, {200, 129}, 2, page));
    expect_correct(make({1, 127, 128, 129}, {1, 127, 128, 129}, 2, page));
    expect_correct(make({1, 2, 3, 4}, {1, 127, 128, 129}, 2, page));
  }
}

TEST_P(MsaFaults, F26_EmptyRequest) {
  const Msa call = make({5}, {150}, 2);
  const Output got = call.output();
  MsaArgs a = call.args_into(got);
  const TestTensor cu_q = ints({0, 0, 5, 5}), cu_k = ints({0, 0, 150, 150});
  a.sequences.cu_seqlens_q = cu_q;
  a.sequences.cu_seqlens_k = cu_k;
  EXPECT_EQ(run(a, got), run(call));
}

TEST_P(MsaFaults, F29_F31_F32_LengthsOffTheBlockGrid) {
  for (int64_t page : {0, 128}) {
    expect_correct(make({1, 1, 1, 129, 1}, {1, 4096, 129, 129, 65}, 33, page));
    expect_correct(make({.rows = {507}, .keys = {507}, .kv_heads = 1, .block = 128, .width = 3, .page = page}));
  }
}

TEST_P(MsaFaults, F34_F35_ABlockPastTheEnd) {
  for (int64_t page : {0, 64}) {
    Msa call = make({128, 128}, {256, 256}, 4, page);
    set_lists(&call, {0, 2, 1, 3});
    const Output past = expect_correct(call);
    set_lists(&call, {0, -1, 1, -1});
    EXPECT_EQ(run(call), past);
  }
}

TEST_P(MsaFaults, F37_PartialsOfNoBlockAreNotWritten) {
  Msa call = make({.rows = {1, 2}, .keys = {5120, 300}, .block = 128, .width = 40});
  std::vector<double> list(40, -1);
  list[11] = 1;
  set_lists(&call, list);
  const Output want = expect_correct(call), got = call.output();
  const MsaArgs a = call.args_into(got);
  tessera_context mine = context();
  size_t bytes = 0;
  ASSERT_EQ(tessera_msa_sparse_attention_workspace_size(&a, &mine, &bytes), TESSERA_OK);
  const Guarded memory(bytes);
  std::memset(memory.data(), 0xff, bytes);
  mine.workspace = memory.data();
  mine.workspace_bytes = bytes;
  EXPECT_EQ(call.run(mine), want);
}

TEST_P(MsaFaults, F38_MergeOfPartialsWithDifferentStrides) {
  Msa even = make({.rows = {20}, .keys = {200}, .block = 16, .width = 13}), odd = even, all = even;
  set_lists(&all, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  even.ids = all.ids.clone();
  odd.ids = all.ids.clone();
  for (int64_t i = 0; i < all.ids.elements(); ++i) (i % 13 % 2 == 0 ? odd : even).ids.set(i, -1);
  odd.shape.layout = cases::Layout::kStrided;  // of its outputs
  const Output a = run(even), b = run(odd), into = all.output();
  const tessera_tensor outs[] = {a.out, b.out}, lses[] = {a.lse, b.lse};
  const tessera_merge_states_args merge = {outs, lses, 2, into.out, into.lse};
  ASSERT_EQ(tessera_merge_states(&merge, nullptr), TESSERA_OK) << tessera_last_error();
  const reference::Attention want = all.expected();
  // Three roundings to bf16 in place of one.
  std::vector<double> spread = want.spread;
  for (double& s : spread) s *= 2;
  EXPECT_TRUE(out_within(into.out, TESSERA_BF16, want.out, spread));
  EXPECT_TRUE(log_within("lse", into.lse, TESSERA_BF16, want.lse));
}

TEST_P(MsaFaults, F40_OnlyTheLastTokenOfATileSelectsABlock) {
  for (int64_t rows : {31, 32, 33, 63, 64, 65, 96}) {
    for (int64_t group : {1, 2, 16}) {
      Msa call = make({.rows = {rows}, .keys = {400}, .group = group, .width = 1, .ids = Ids::kInvalid});
      call.ids.set(rows - 1, 7);
      const Output got = expect_correct(call);
      EXPECT_TRUE(std::isfinite(got.lse.get((rows - 1) * 2 * group))) << rows;
    }
  }
}

TEST_P(MsaFaults, F41_APlanOfAnotherGroupAndCountsBeyondCapacity) {
  for (int64_t group : {8, 16, 8, 1}) {
    Msa call = make({.rows = {9, 1}, .keys = {300, 140}, .kv_heads = 1, .group = group, .page = 16});
    expect_correct(call);
    call.used = ints({INT_MAX, 1 << 20});
    expect_correct(call);
  }
}

TEST_P(MsaFaults, F44_PageSizeIsNotBlockSize) {
  const Msa packed = make({9, 2}, {400, 129}, 2);
  for (int64_t page : {16, 64, 100, 256}) EXPECT_EQ(run(in_pages(packed, page)), run(packed)) << page;
}

TEST_P(MsaFaults, F46_AHoleEndsTheList) {
  for (int64_t page : {0, 128}) {
    Msa call = make({1}, {800}, 3, page);
    set_lists(&call, {3, -1, 5});
    const Output got = expect_correct(call);
    set_lists(&call, {5, 3, -1});
    EXPECT_EQ(run(call), got);
  }
}

TEST_P(MsaFaults, F49_AnIndexBufferOfAnotherShape) {
  const Msa call = make({8}, {300}, 8);
  const Output to = call.output();
  MsaArgs a = call.args_into(to);
  a.q2k_indices.shape[1] = a.q2k_indices.stride[1] = 4;  // [Hkv, 8, 8] as [Hkv, 4, 16]
  a.q2k_indices.shape[2] = 16;
  const tessera_context ctx = context();
  EXPECT_EQ(tessera_msa_sparse_attention(&a, &ctx), TESSERA_INVALID_ARGUMENT);
  EXPECT_TRUE(names(tessera_last_error(), "q2k_indices")) << tessera_last_error();
  EXPECT_TRUE(to.out.untouched());
}

TEST_P(MsaFaults, F52_HeadCountsWithoutAKernel) {
  const int64_t counts[][2] = {{64, 4}, {16, 1}, {8, 8}, {12, 3}, {48, 4}};
  for (const auto& [heads, kv_heads] : counts) {
    expect_correct(make({.rows = {5, 1}, .keys = {70, 90}, .kv_heads = kv_heads, .group = heads / kv_heads}));
  }
}

}  // namespace
}  // namespace tessera::test
