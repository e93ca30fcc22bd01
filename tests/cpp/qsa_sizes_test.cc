// Sizes and strides that no memory has, in views that need none: refused by name, or right, and never counted wrong.
#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <string>
#include <vector>

#include "messages.h"
#include "tensors.h"

namespace tessera::test {
namespace {

constexpr int64_t k2To32 = int64_t{1} << 32, k2To40 = int64_t{1} << 40, k2To58 = int64_t{1} << 58;

// A view of 4 KB; results and inputs lie apart.
tessera_tensor view(tessera_dtype dtype, const Shape& shape, const Shape& strides, size_t at = 0) {
  static std::vector<float> memory(4096, 0.0f);
  tessera_tensor t = {memory.data() + at, dtype, static_cast<int32_t>(shape.size()), {}, {}};
  std::copy(shape.begin(), shape.end(), t.shape);
  std::copy(strides.begin(), strides.end(), t.stride);
  return t;
}
tessera_tensor floats(const Shape& shape, const Shape& strides) { return view(TESSERA_F32, shape, strides); }
tessera_tensor ids(const Shape& shape, const Shape& strides) { return view(TESSERA_I32, shape, strides); }
tessera_tensor result(const Shape& shape, const Shape& strides, tessera_dtype dtype = TESSERA_F32) {
  return view(dtype, shape, strides, 2048);
}
constexpr tessera_dtype kInts = TESSERA_I32;

using Call = std::function<tessera_status(const tessera_context*)>;
template <class Args>
Call call_of(tessera_status (*function)(const Args*, const tessera_context*), const Args& args) {
  return [=](const tessera_context* context) { return function(&args, context); };
}
Call scores(const tessera_tensor& q, const tessera_tensor& k, const tessera_tensor& to) {
  tessera_qsa_indexer_mqa_score_args a = {};
  a.index.q = q;
  a.index.k = k;
  a.scores = to;
  return call_of(tessera_qsa_indexer_mqa_score, a);
}
Call select(const tessera_tensor& q, const tessera_tensor& k, int64_t topk, int64_t block, const tessera_tensor& to,
            const tessera_tensor& tokens) {
  tessera_qsa_select_args a = {};
  a.index.q = q;
  a.index.k = k;
  a.index.block_size = block;
  a.topk = topk;
  a.indices = to;
  a.token_indices = tokens;
  return call_of(tessera_qsa_select, a);
}
Call decode(const tessera_tensor& q, const tessera_tensor& table, const tessera_tensor& lens,
            const tessera_tensor& to) {
  return call_of(tessera_qsa_mqa_decode,
                 tessera_qsa_mqa_decode_args{q, floats({1, 4, 8}, {32, 8, 1}), table, lens, {}, nullptr, to});
}
Call topk(const tessera_tensor& from, const tessera_tensor& to) {
  return call_of(tessera_topk_blocks, tessera_topk_blocks_args{from, to});
}
Call expand(const tessera_tensor& blocks, const tessera_tensor& positions, const tessera_tensor& to) {
  return call_of(tessera_qsa_expand_blocks, tessera_qsa_expand_blocks_args{blocks, positions, 1, to});
}
Call compress(const tessera_tensor& raw, const tessera_tensor& to) {
  tessera_qsa_compress_keys_args a = {};
  a.raw_keys = raw;
  a.rule.norm_weight = floats({raw.shape[2]}, {1});
  a.out = to;
  return call_of(tessera_qsa_compress_keys, a);
}
Call append(const tessera_tensor& raw, const tessera_tensor& lens, const tessera_tensor& ring,
            const tessera_tensor& cache) {
  tessera_qsa_append_keys_args a = {};
  a.raw_keys = raw;
  a.seq_lens = lens;
  a.rule.norm_weight = floats({8}, {1});
  a.ring = ring;
  a.ring_slots = lens;
  a.cache = cache;
  return call_of(tessera_qsa_append_keys, a);
}
Call attend(const tessera_tensor& q, const tessera_tensor& k, const tessera_tensor& lists, const tessera_tensor& to) {
  tessera_qsa_sparse_attention_args a = {};
  a.q = q;
  a.k = a.v = k;
  a.token_indices = lists;
  a.out = to;
  return call_of(tessera_qsa_sparse_attention, a);
}

void refused(const Call& call, tessera_status status, const std::string& text) {
  for (const tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
    tessera_context context = {};
    context.backend = backend;
    EXPECT_EQ(call(&context), status) << text;
    EXPECT_TRUE(names(tessera_last_error(), text)) << tessera_last_error();
  }
}
void accepted(const Call& call) {
  for (const tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
    tessera_context context = {};
    context.backend = backend;
    EXPECT_EQ(call(&context), TESSERA_OK) << tessera_last_error();
  }
}

TEST(QsaSizes, MoreElementsThanCanBeCounted) {
  const Shape none = {0, 0, 8, 1};
  const tessera_tensor q = floats({k2To32, k2To32, 1, 8}, none), rows = floats({k2To40, k2To40, 0, 8}, none);
  const auto too_many = [](const Call& call, const std::string& name) {
    refused(call, TESSERA_INVALID_ARGUMENT, name);
    EXPECT_TRUE(names(tessera_last_error(), "has more than 2^61 elements")) << tessera_last_error();
  };
  too_many(scores(q, floats({k2To32, 0, 8}, {0, 8, 1}), result({k2To32, k2To32, 0}, {0, 0, 1})), "q_idx");
  too_many(decode(q, ids({k2To32, 1}, {0, 1}), ids({k2To32}, {0}), result({0, 4}, {4, 1})), "q");
  too_many(select(q, floats({k2To32, 0, 8}, {0, 8, 1}), 1, 4, result({1}, {1}), {}), "q_idx");
  too_many(topk(rows, result({k2To40, k2To40, 0, 1}, {0, 0, 0, 1}, kInts)), "scores");
  too_many(expand(ids({k2To40, k2To40, 0, 8}, none), ids({k2To40, k2To40, 0}, {0, 0, 0}), {}), "block_ids");
  too_many(compress(floats({k2To40, k2To40, 8}, {0, 0, 1}), {}), "raw_keys");
  too_many(append(floats({k2To32, k2To32, 8}, {0, 0, 1}), ids({k2To32}, {0}), {}, {}), "raw_keys");
  too_many(attend(q, floats({k2To32, 4, 1, 8}, {0, 8, 8, 1}), {}, {}), "query");
  too_many(call_of(tessera_qsa_screen_keys, tessera_qsa_screen_keys_args{rows, {}, {}}), "keys");
}

TEST(QsaSizes, MoreRowsThanInt32Counts) {
  const int64_t rows = k2To32 / 2;
  refused(scores(floats({rows, 1, 8}, {0, 8, 1}), floats({1, 0, 8}, {0, 8, 1}), result({rows, 0}, {1, 1})),
          TESSERA_NOT_IMPLEMENTED, "number of rows of q_idx is 2147483648");
  refused(
      scores(floats({rows, 0, 1, 8}, {0, 0, 8, 1}), floats({rows, 0, 8}, {0, 8, 1}), result({rows, 0, 0}, {0, 0, 1})),
      TESSERA_NOT_IMPLEMENTED, "B of block_keys is 2147483648");
  refused(decode(floats({rows, 1, 8}, {0, 8, 1}), ids({rows, 1}, {0, 1}), ids({rows}, {0}), result({rows, 0}, {1, 1})),
          TESSERA_NOT_IMPLEMENTED, "number of rows of q is 2147483648");
  const tessera_tensor bounds = ids({rows}, {0});
  refused(call_of(tessera_qsa_mqa_prefill, tessera_qsa_mqa_prefill_args{floats({rows, 1, 8}, {0, 8, 1}),
                                                                        floats({0, 8}, {8, 1}),
                                                                        bounds,
                                                                        bounds,
                                                                        {},
                                                                        nullptr,
                                                                        result({rows, 0}, {1, 1})}),
          TESSERA_NOT_IMPLEMENTED, "number of rows of q is 2147483648");
  refused(attend(floats({rows, 1, 8}, {0, 8, 1}), floats({1, 4, 1, 8}, {0, 8, 8, 1}), {}, {}), TESSERA_NOT_IMPLEMENTED,
          "number of rows of query is 2147483648");
}

TEST(QsaSizes, StridesOfAxesWithoutASecondElement) {
  const auto call = [](int64_t stride) {
    return scores(floats({1, 1, 1, 8}, {stride, stride, stride, 1}), floats({1, 1, 8}, {stride, stride, 1}),
                  result({1, 1, 1}, {stride, stride, stride}));
  };
  for (int64_t stride : {int64_t{0}, int64_t{-8}, -k2To40, k2To40, k2To58 / 4}) accepted(call(stride));
  for (int64_t stride : {INT64_MIN, INT64_MAX, -k2To58 * 8, k2To58 * 8}) {
    refused(call(stride), TESSERA_INVALID_ARGUMENT, "beyond the address space");
  }
  refused(compress(floats({0, 8, 8}, {INT64_MAX / 4, 8, 1}), result({0, 2, 8}, {0, 8, 1})), TESSERA_INVALID_ARGUMENT,
          "beyond the address space");
  refused(compress(floats({1, 4, 8}, {INT64_MIN, 8, 1}), result({1, 1, 8}, {8, 8, 1})), TESSERA_INVALID_ARGUMENT,
          "beyond the address space");
}

TEST(QsaSizes, NoRowsOfHugeOnes) {
  const tessera_tensor k = floats({1, 4, 8}, {0, 8, 1}), q = floats({1, 0, 1, 8}, {0, 0, 8, 1});
  accepted(select(q, k, k2To58, 4, result({1, 0, k2To58}, {1, 1, 1}, kInts), {}));
  accepted(select(q, k, k2To58, 1, {}, result({1, 0, k2To58}, {1, 1, 1}, kInts)));
  accepted(
      decode(floats({0, k2To40, 1, 8}, {0, 0, 8, 1}), ids({0, 1}, {1, 1}), ids({0}, {1}), result({0, 4}, {k2To58, 1})));
  accepted(topk(floats({0, 8}, {0, 0}), result({0, k2To58}, {0, 1}, kInts)));
  accepted(compress(floats({0, k2To40, 8}, {0, 0, 1}), result({0, k2To40 / 4, 8}, {0, 0, 1})));
  accepted(attend(q, floats({1, 4, 1, 8}, {0, 8, 8, 1}), ids({1, 0, k2To58}, {0, 0, 0}),
                  result({1, 0, 1, 8}, {0, 0, 8, 1})));
}

TEST(QsaSizes, PagesOfNoTokens) {
  const tessera_tensor q = floats({1, 1, 1, 8}, {0, 0, 8, 1}), to = result({1, 1, 1, 8}, {0, 0, 8, 1});
  tessera_qsa_sparse_attention_args a = {};
  a.q = q;
  a.token_indices = ids({1, 1, 3}, {0, 0, 1});
  a.page_table = ids({1, 1}, {1, 1});
  a.out = to;
  const auto gives_zero = [&] {
    *static_cast<float*>(to.data) = 7;
    accepted(call_of(tessera_qsa_sparse_attention, a));
    EXPECT_EQ(*static_cast<float*>(to.data), 0);
  };
  a.k = a.v = floats({4, 0, 1, 8}, {8, 8, 8, 1});
  gives_zero();
  a.k = floats({4, 1, 8, 0, 1}, {8, 8, 1, 1, 1});  // in the packed layout
  a.v = floats({4, 1, 0, 8, 1}, {8, 8, 1, 1, 1});
  gives_zero();
  a.q = floats({1, 1, 8}, {8, 8, 1});
  a.out = result({1, 1, 8}, {8, 8, 1});
  a.token_indices = a.page_table = {};
  a.selected_kv_indices = ids({1, 3}, {3, 1});
  gives_zero();
  tessera_qsa_select_args s = {};
  s.index.q = q;
  s.index.k = floats({4, 0, 8}, {8, 8, 1});
  s.index.page_table = ids({1, 1}, {1, 1});
  s.topk = 1;
  s.indices = result({1, 1, 1}, {1, 1, 1}, kInts);
  accepted(call_of(tessera_qsa_select, s));
  EXPECT_EQ(*static_cast<int32_t*>(s.indices.data), -1);
}

// A block of 2^63 - 1 tokens is never complete, and its list of tokens has no room.
TEST(QsaSizes, BlocksLongerThanAnyRequest) {
  const tessera_tensor k = floats({1, 4, 8}, {0, 8, 1}), q = floats({1, 1, 1, 8}, {0, 0, 8, 1});
  const tessera_tensor to = result({1, 1, 1}, {1, 1, 1}, kInts);
  accepted(select(q, k, 1, INT64_MAX, to, {}));
  refused(select(q, k, 1, INT64_MAX, to, to), TESSERA_INVALID_ARGUMENT, "too many tokens");
}

}  // namespace
}  // namespace tessera::test
