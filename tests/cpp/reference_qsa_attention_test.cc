// The oracle's attention over token lists against results worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "by_hand.h"
#include "reference/reference.h"

namespace tessera::test {
namespace {

using Values = std::vector<double>;

// Queries are 0, so that a row is the mean of what it lists. Two requests of two rows and four tokens.
struct TinyTokens {
  TestTensor q = f32({2, 2, 1, 1}, {0, 0, 0, 0});
  TestTensor k = f32({2, 4, 1, 1}, {1, 2, 3, 4, 5, 6, 7, 8});
  TestTensor v = f32({2, 4, 1, 1}, {1, 2, 4, 8, 16, 32, 64, 128});
  TestTensor ids = i32({2, 2, 3}, {0, 1, 2, 3, 3, 1, -1, 7, 0, 2, 1, -9});
  tessera_qsa_sparse_attention_args args = {};

  TinyTokens() {
    args.q = q;
    args.k = k;
    args.v = v;
    args.token_indices = ids;
  }
  Values out() const { return reference::qsa_attention(args).out; }
  // Rows as packed ones.
  void pack() {
    args.q = view_of(q, {4, 1, 1}, {1, 1, 1});
    args.token_indices = view_of(ids, {4, 3}, {3, 1});
  }
};

TEST(ReferenceQsaAttention, IsTheMeanOfWhatIsListed) {
  TinyTokens call;
  expect_near(call.out(), {7.0 / 3, 6, 16, 48});
  expect_near(reference::qsa_attention(call.args).lse, {std::log(3), std::log(3), 0, kLog2});
  const TestTensor q = f32({2, 2, 1, 1}, {kLog2, 0, 1, 0});
  const float scale = 2;
  call.args.q = q;
  call.args.softmax_scale = &scale;  // weights 4, 16 and 64
  const reference::Attention got = reference::qsa_attention(call.args);
  expect_near(got.out, {(4 * 1 + 16 * 2 + 64 * 4) / 84.0, 6, 16, 48});
  expect_near(got.lse, {std::log(84), std::log(3), 10, kLog2});
  expect_near(got.reach, {6 * kLog2, 0, 10, 0});
}

TEST(ReferenceQsaAttention, SeesUpToThePosition) {
  TinyTokens call;
  const TestTensor positions = i32({2, 2}, {1, 2, -1, 1}), lens_k = i32({2}, {2, 9}), lens_q = i32({2}, {1, 0});
  call.args.query_positions = positions;
  expect_near(call.out(), {1.5, 2, 0, 32});
  call.args.query_positions = {};
  call.args.seq_lens_k = lens_k;  // rows at 0 and 1, and at 2 and 3
  expect_near(call.out(), {1, 2, 16, 48});
  call.args.seq_lens_q = lens_q;  // the only row is at 1
  expect_near(call.out(), {1.5, 0, 0, 0});
  expect_near(reference::qsa_attention(call.args).lse, {kLog2, -kInf, -kInf, -kInf});
}

TEST(ReferenceQsaAttention, PlacesPackedRows) {
  TinyTokens call;
  call.pack();
  const TestTensor cu = i32({3}, {0, 1, 3}), map = i32({4}, {1, 0, 1, 2}), broken = i32({3}, {2, 1, 4});
  call.args.cu_seqlens_q = cu;
  expect_near(call.out(), {7.0 / 3, 32, 16, 0});  // row 1 is at 2: its 3 is not seen
  call.args.cu_seqlens_q = broken;
  expect_near(call.out(), {0, 32, 16, 48});
  call.args.cu_seqlens_q = {};
  call.args.token_to_req = map;
  expect_near(call.out(), {112.0 / 3, 18.0 / 3, 16, 0});
  const TestTensor cu_k = i32({3}, {0, 3, 8});
  call.args.k = view_of(call.k, {8, 1, 1}, {1, 1, 1});
  call.args.v = view_of(call.v, {8, 1, 1}, {1, 1, 1});
  call.args.cu_seqlens_k = cu_k;  // rows at 3, 2 and 4
  expect_near(call.out(), {56.0 / 3, 2, 8, 0});
}

TEST(ReferenceQsaAttention, TokensLieInPages) {
  TinyTokens call;
  const TestTensor table = i32({2, 2}, {1, 0, 7, 3});
  call.args.k = view_of(call.k, {4, 2, 1, 1}, {2, 1, 1, 1});
  call.args.v = view_of(call.v, {4, 2, 1, 1}, {2, 1, 1, 1});
  call.args.page_table = table;
  expect_near(call.out(), {(4 + 8 + 1) / 3.0, (2 + 2 + 8) / 3.0, 0, 64});
}

TEST(ReferenceQsaAttention, TakesSlots) {
  TinyTokens call;
  call.pack();
  call.args.selected_kv_indices = call.args.token_indices;
  call.args.token_indices = {};
  call.args.k = view_of(call.k, {8, 1, 1}, {1, 1, 1});
  call.args.v = view_of(call.v, {8, 1, 1}, {1, 1, 1});
  expect_near(call.out(), {7.0 / 3, 6, (128 + 1) / 2.0, 3});
}

TEST(ReferenceQsaAttention, GatesWhatIsRounded) {
  TinyTokens call;
  const TestTensor gate = f32({2, 2, 1}, {0, 100, -100, std::log(3)}), out(TESSERA_F32, {2, 2, 1, 1});
  call.args.gate = gate;
  call.args.out = out;
  EXPECT_TRUE(reference_qsa_sparse_attention(call.args).ok());
  expect_near(out.values().values(), {3.5 / 3, 6, 0, 36}, 1e-5);
}

}  // namespace
}  // namespace tessera::test
