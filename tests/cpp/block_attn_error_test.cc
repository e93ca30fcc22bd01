// Bad structure is refused by name before anything is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "attention.h"
#include "messages.h"

namespace tessera::test {
namespace {

const cases::BlockAttn kBase = {
    .requests = 2, .queries = 20, .keys = 50, .kv_heads = 2, .per_head = true, .offset = cases::Offset::kPerRequest};

tessera_tensor with_rank(tessera_tensor t, int32_t rank) {
  for (int32_t axis = t.ndim; axis < std::min(rank, TESSERA_MAX_DIMS); ++axis) t.shape[axis] = 1, t.stride[axis] = 1;
  t.ndim = rank;
  return t;
}
tessera_tensor with_dtype(tessera_tensor t, tessera_dtype dtype) {
  t.dtype = dtype;
  return t;
}
tessera_tensor with_size(tessera_tensor t, int axis, int64_t size) {
  t.shape[axis] = size;
  return t;
}
tessera_tensor with_stride(tessera_tensor t, int axis, int64_t stride) {
  t.stride[axis] = stride;
  return t;
}
tessera_tensor with_data(tessera_tensor t, void* data) {
  t.data = data;
  return t;
}

class BlockAttnErrors : public testing::Test {
 protected:
  // The call must fail with this status and name the argument, and leave the outputs alone. With nullptr as the
  // argument, only the operator must be named.
  void expect_refused(tessera_status status, const char* argument, const std::function<void(Args&)>& spoil,
                      const tessera_context* context = nullptr) {
    const Output to = call.output();
    Args a = call.args_into(to);
    spoil(a);
    EXPECT_EQ(tessera_block_sparse_gqa_prefill(&a, context), status) << (argument == nullptr ? "" : argument);
    expect_message("block_sparse_gqa_prefill: ", argument);
    EXPECT_TRUE(to.out.untouched());
    EXPECT_TRUE(to.lse.untouched());
  }
  void expect_state_refused(tessera_status status, const char* argument, const std::function<void(Args&)>& spoil) {
    const State to = call.state();
    Args a = call.args_into(to);
    spoil(a);
    EXPECT_EQ(tessera_block_sparse_gqa_prefill_state(&a, nullptr), status) << argument;
    expect_message("block_sparse_gqa_prefill_state: ", argument);
    EXPECT_TRUE(to.o.untouched());
    EXPECT_TRUE(to.l.untouched());
    EXPECT_TRUE(to.m.untouched());
  }
  static void expect_message(const std::string& op, const char* argument) {
    const std::string message = tessera_last_error();
    EXPECT_EQ(message.rfind(op, 0), 0u) << message;
    if (argument == nullptr) return;
    EXPECT_TRUE(names(message, argument)) << "does not name " << argument << ": " << message;
  }

  const Attention call = make_attention(kBase, TESSERA_BF16);
};

using Field = tessera_tensor Args::*;
struct NamedField {
  const char* name;
  Field field;
};
const NamedField kInputs[] = {{"q", &Args::q},
                              {"k", &Args::k},
                              {"v", &Args::v},
                              {"kv_indices", &Args::kv_indices},
                              {"q_offset", &Args::q_offset}};
const NamedField kOutputs[] = {{"out", &Args::out}, {"lse", &Args::lse}};
const NamedField kStates[] = {{"state_o", &Args::state_o}, {"state_l", &Args::state_l}, {"state_m", &Args::state_m}};

TEST_F(BlockAttnErrors, TheBaseIsValid) {
  call.run();
  call.run_state();
}

TEST_F(BlockAttnErrors, NullArguments) {
  EXPECT_EQ(tessera_block_sparse_gqa_prefill(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  expect_message("block_sparse_gqa_prefill: ", "args");
  EXPECT_EQ(tessera_block_sparse_gqa_prefill_state(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  expect_message("block_sparse_gqa_prefill_state: ", "args");
}

TEST_F(BlockAttnErrors, Missing) {
  for (const NamedField& t : {kInputs[0], kInputs[1], kInputs[2], kInputs[3], kOutputs[0]}) {
    expect_refused(TESSERA_INVALID_ARGUMENT, t.name, [&](Args& a) { a.*t.field = {}; });
  }
  for (const NamedField& t : kStates) {
    expect_state_refused(TESSERA_INVALID_ARGUMENT, t.name, [&](Args& a) { a.*t.field = {}; });
  }
}

// What is wrong with a tensor by itself, whichever it is.
TEST_F(BlockAttnErrors, RankDtypeStrideAndData) {
  const auto refuse = [&](const NamedField& t, bool state, tessera_status status, auto change) {
    const auto spoil = [&](Args& a) { a.*t.field = change(a.*t.field); };
    if (state) {
      expect_state_refused(status, t.name, spoil);
    } else {
      expect_refused(status, t.name, spoil);
    }
  };
  const auto refuse_all = [&](const NamedField& t, bool state) {
    SCOPED_TRACE(t.name);
    const auto bad_rank = [](int32_t rank) { return [rank](tessera_tensor x) { return with_rank(x, rank); }; };
    refuse(t, state, TESSERA_INVALID_ARGUMENT, bad_rank(2));
    refuse(t, state, TESSERA_INVALID_ARGUMENT, bad_rank(5));
    refuse(t, state, TESSERA_INVALID_ARGUMENT, bad_rank(-1));
    refuse(t, state, TESSERA_INVALID_ARGUMENT, bad_rank(1000000));
    refuse(t, state, TESSERA_TYPE_ERROR, [](tessera_tensor x) { return with_dtype(x, TESSERA_OTHER_DTYPE); });
    refuse(t, state, TESSERA_TYPE_ERROR,
           [](tessera_tensor x) { return with_dtype(x, x.dtype == TESSERA_I32 ? TESSERA_F32 : TESSERA_I32); });
    refuse(t, state, TESSERA_TYPE_ERROR,
           [](tessera_tensor x) { return with_dtype(x, static_cast<tessera_dtype>(-5)); });
    refuse(t, state, TESSERA_INVALID_ARGUMENT, [](tessera_tensor x) { return with_stride(x, 0, -1); });
    refuse(t, state, TESSERA_INVALID_ARGUMENT, [](tessera_tensor x) { return with_size(x, 0, -2); });
    refuse(t, state, TESSERA_INVALID_ARGUMENT, [](tessera_tensor x) { return with_size(x, 0, 7); });
    refuse(t, state, TESSERA_INVALID_ARGUMENT,
           [](tessera_tensor x) { return with_stride(x, 0, std::numeric_limits<int64_t>::max()); });
    refuse(t, state, TESSERA_INVALID_ARGUMENT, [](tessera_tensor x) { return with_data(x, nullptr); });
    refuse(t, state, TESSERA_INVALID_ARGUMENT,
           [](tessera_tensor x) { return with_data(x, static_cast<char*>(x.data) - 1); });
  };
  for (const NamedField& t : kInputs) refuse_all(t, false);
  for (const NamedField& t : kOutputs) refuse_all(t, false);
  for (const NamedField& t : kStates) refuse_all(t, true);
}

TEST_F(BlockAttnErrors, Dtypes) {
  expect_refused(TESSERA_TYPE_ERROR, "k", [](Args& a) { a.k = with_dtype(a.k, TESSERA_F16); });
  expect_refused(TESSERA_TYPE_ERROR, "v", [](Args& a) { a.v = with_dtype(a.v, TESSERA_F16); });
  expect_refused(TESSERA_TYPE_ERROR, "out", [](Args& a) { a.out = with_dtype(a.out, TESSERA_F16); });
  expect_refused(TESSERA_TYPE_ERROR, "lse", [](Args& a) { a.lse = with_dtype(a.lse, TESSERA_BF16); });
  expect_state_refused(TESSERA_TYPE_ERROR, "state_o", [](Args& a) { a.state_o = with_dtype(a.state_o, TESSERA_BF16); });
}

TEST_F(BlockAttnErrors, EveryAxis) {
  const auto refuse = [&](const char* name, Field field, int axis) {
    SCOPED_TRACE(axis);
    expect_refused(TESSERA_INVALID_ARGUMENT, name,
                   [&](Args& a) { a.*field = with_size(a.*field, axis, (a.*field).shape[axis] - 1); });
  };
  for (int axis : {0, 2, 3}) refuse("k", &Args::k, axis);
  for (int axis : {0, 1, 2}) refuse("v", &Args::v, axis);
  for (int axis : {0, 1, 2}) refuse("kv_indices", &Args::kv_indices, axis);
  for (int axis : {0, 1, 2, 3}) refuse("out", &Args::out, axis);
  for (int axis : {0, 1, 2}) refuse("lse", &Args::lse, axis);
  refuse("q_offset", &Args::q_offset, 0);
  for (int axis : {0, 1, 2, 3}) {
    expect_state_refused(TESSERA_INVALID_ARGUMENT, "state_o",
                         [&](Args& a) { a.state_o = with_size(a.state_o, axis, a.state_o.shape[axis] - 1); });
  }
  for (int axis : {0, 1, 2}) {
    expect_state_refused(TESSERA_INVALID_ARGUMENT, "state_l",
                         [&](Args& a) { a.state_l = with_size(a.state_l, axis, 1); });
    expect_state_refused(TESSERA_INVALID_ARGUMENT, "state_m",
                         [&](Args& a) { a.state_m = with_size(a.state_m, axis, 1); });
  }
}

TEST_F(BlockAttnErrors, Heads) {
  expect_refused(TESSERA_INVALID_ARGUMENT, "q", [](Args& a) { a.q = with_size(a.q, 2, 3); });
  expect_refused(TESSERA_INVALID_ARGUMENT, "q", [](Args& a) { a.q = with_size(a.q, 2, 0); });
  expect_refused(TESSERA_INVALID_ARGUMENT, "k", [](Args& a) {
    a.k = with_size(a.k, 2, 0);
    a.v = with_size(a.v, 2, 0);
  });
}

TEST_F(BlockAttnErrors, FeatureStride) {
  for (const NamedField& t : {kInputs[0], kInputs[1], kInputs[2], kOutputs[0]}) {
    expect_refused(TESSERA_INVALID_ARGUMENT, t.name, [&](Args& a) { a.*t.field = with_stride(a.*t.field, 3, 2); });
  }
  expect_state_refused(TESSERA_INVALID_ARGUMENT, "state_o", [](Args& a) { a.state_o = with_stride(a.state_o, 3, 2); });
}

TEST_F(BlockAttnErrors, Options) {
  expect_refused(TESSERA_INVALID_ARGUMENT, "block_size", [](Args& a) { a.block_size = -1; });
  expect_refused(TESSERA_INVALID_ARGUMENT, "block_q", [](Args& a) { a.block_q = -1; });
  expect_refused(TESSERA_INVALID_ARGUMENT, "kv_indices", [](Args& a) { a.block_q = 7; });  // 2 lists come
  expect_refused(TESSERA_INVALID_ARGUMENT, "mask", [](Args& a) { a.mask = static_cast<tessera_mask>(2); });
  for (float scale : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    expect_refused(TESSERA_INVALID_ARGUMENT, "softmax_scale", [&](Args& a) { a.softmax_scale = &scale; });
  }
  const TestTensor o(TESSERA_F32, {2, 20, 4, 16});
  expect_refused(TESSERA_INVALID_ARGUMENT, "state_o", [&](Args& a) { a.state_o = o; });
  const TestTensor out(TESSERA_BF16, {2, 20, 4, 16});
  expect_state_refused(TESSERA_INVALID_ARGUMENT, "out", [&](Args& a) { a.out = out; });
}

TEST_F(BlockAttnErrors, OverlapOfAnOutput) {
  for (const NamedField& output : kOutputs) {
    SCOPED_TRACE(output.name);
    for (const NamedField& input : kInputs) {
      expect_refused(TESSERA_INVALID_ARGUMENT, output.name,
                     [&](Args& a) { a.*output.field = with_data(a.*output.field, (a.*input.field).data); });
    }
    expect_refused(TESSERA_INVALID_ARGUMENT, output.name,
                   [&](Args& a) { a.*output.field = with_stride(a.*output.field, 2, 0); });
    expect_refused(TESSERA_INVALID_ARGUMENT, output.name,
                   [&](Args& a) { a.*output.field = with_stride(a.*output.field, 0, 1); });
  }
  expect_refused(TESSERA_INVALID_ARGUMENT, "lse", [](Args& a) { a.lse = with_data(a.lse, a.out.data); });
  for (const NamedField& state : kStates) {
    SCOPED_TRACE(state.name);
    for (const NamedField& other : {kInputs[0], kInputs[3], kStates[0], kStates[1], kStates[2]}) {
      if (other.field == state.field) continue;
      expect_state_refused(TESSERA_INVALID_ARGUMENT, state.name,
                           [&](Args& a) { a.*state.field = with_data(a.*state.field, (a.*other.field).data); });
    }
  }
}

// q and out that interleave in one buffer, [B, Sq, (q, out), Hq, D], share no element.
TEST_F(BlockAttnErrors, NoOverlapOfInterleavedViews) {
  const TestTensor both(TESSERA_BF16, {2, 20, 2, 4, 16});
  tessera_tensor q = both;
  q.ndim = 4;
  const int64_t shape[] = {2, 20, 4, 16}, strides[] = {20 * 128, 128, 16, 1};
  for (int axis = 0; axis < 4; ++axis) q.shape[axis] = shape[axis], q.stride[axis] = strides[axis];
  const tessera_tensor out = with_data(q, static_cast<uint16_t*>(q.data) + 64);
  const reference::View from(call.q), to(q);
  for (int64_t i = 0; i < call.q.elements(); ++i) to.set(i, from.get(i));
  const Output want = call.run();
  Args a = call.args();
  a.q = q;
  a.out = out;
  ASSERT_EQ(tessera_block_sparse_gqa_prefill(&a, nullptr), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(reference::View(out).values(), want.out.values().values());
  EXPECT_EQ(to.values(), from.values());
}

TEST_F(BlockAttnErrors, Context) {
  const auto refuse = [&](tessera_status status, const char* argument, auto spoil) {
    tessera_context context = {};
    spoil(context);
    expect_refused(
        status, argument, [](Args&) {}, &context);
  };
  const auto invalid = TESSERA_INVALID_ARGUMENT;
  refuse(invalid, "variant", [](tessera_context& c) { c.variant = "avx1024"; });
  refuse(invalid, "backend", [](tessera_context& c) { c.backend = static_cast<tessera_backend>(2); });
  refuse(invalid, "executor", [](tessera_context& c) { c.executor.kind = static_cast<tessera_executor_kind>(9); });
  refuse(invalid, "num_threads", [](tessera_context& c) { c.executor = {TESSERA_EXECUTOR_THREADS, 0, 0, 0, {}, {}}; });
  refuse(invalid, "num_threads", [](tessera_context& c) { c.executor = {TESSERA_EXECUTOR_THREADS, -3, 0, 0, {}, {}}; });
  refuse(invalid, "parallel_for",
         [](tessera_context& c) { c.executor = {TESSERA_EXECUTOR_PARALLEL_FOR, 2, 0, 0, {}, {}}; });
  refuse(invalid, "part", [](tessera_context& c) { c.executor = {TESSERA_EXECUTOR_PART, 0, 3, 3, {}, {}}; });
  refuse(invalid, "part", [](tessera_context& c) { c.executor = {TESSERA_EXECUTOR_PART, 0, -1, 3, {}, {}}; });
  refuse(invalid, "num_parts", [](tessera_context& c) { c.executor = {TESSERA_EXECUTOR_PART, 0, 0, 0, {}, {}}; });
  alignas(64) std::byte memory[256];
  refuse(invalid, "workspace_bytes",
         [&](tessera_context& c) { c.workspace = memory, c.workspace_bytes = sizeof memory; });
  refuse(invalid, "workspace", [&](tessera_context& c) { c.workspace = memory + 1, c.workspace_bytes = 1u << 30; });
}

TEST_F(BlockAttnErrors, VariantsThatCannotRun) {
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    const tessera_context context = with_variant(tessera_variant_name(i));
    if (tessera_variant_available(i) == 0) {
      expect_refused(
          TESSERA_NOT_IMPLEMENTED, tessera_variant_name(i), [](Args&) {}, &context);
    } else if (!takes(tessera_variant_name(i), TESSERA_F32)) {
      const Attention f32 = make_attention(kBase, TESSERA_F32);
      const Args a = f32.args_into(f32.output());
      EXPECT_EQ(tessera_block_sparse_gqa_prefill(&a, &context), TESSERA_NOT_IMPLEMENTED);
      expect_message("block_sparse_gqa_prefill: ", tessera_variant_name(i));
    }
  }
}

TEST_F(BlockAttnErrors, DoNotHideLaterSuccess) {
  expect_refused(TESSERA_INVALID_ARGUMENT, "q", [](Args& a) { a.q = {}; });
  call.run();
}

}  // namespace
}  // namespace tessera::test
