// Bad structure of a selection is refused by name before anything is written.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "select.h"

namespace tessera::test {
namespace {

class SelectErrors : public testing::TestWithParam<Selector> {
 protected:
  SelectErrors() : call({.requests = 2, .kv_heads = 2, .offset = cases::Offset::kPerRequest}, TESSERA_F32) {}

  // The call must fail with this status, name operator and argument, and leave the indices alone, natively and by the
  // reference.
  void expect_refused(tessera_status status, const char* argument, const std::function<void(SelectArgs&)>& spoil,
                      tessera_context context = {}) {
    SCOPED_TRACE(argument);
    for (tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
      context.backend = backend;
      const TestTensor to = call.indices();
      SelectArgs a = call.args();
      a.indices = to;
      spoil(a);
      EXPECT_EQ(select(GetParam(), a, &context), status) << tessera_last_error();
      const std::string message = tessera_last_error();
      EXPECT_EQ(message.rfind(std::string(selector_name(GetParam())) + "_select: ", 0), 0u) << message;
      EXPECT_NE(message.find(argument), std::string::npos) << message;
      EXPECT_TRUE(to.untouched());
    }
  }
  void expect_invalid(const char* argument, const std::function<void(SelectArgs&)>& spoil) {
    expect_refused(TESSERA_INVALID_ARGUMENT, argument, spoil);
  }
  void expect_type_error(const char* argument, const std::function<void(SelectArgs&)>& spoil) {
    expect_refused(TESSERA_TYPE_ERROR, argument, spoil);
  }

  Select call;
};
INSTANTIATE_TEST_SUITE_P(Select, SelectErrors, testing::ValuesIn(kSelectors),
                         [](const auto& test) { return std::string(selector_name(test.param)); });

TEST_P(SelectErrors, PackedLayout) {
  const TestTensor k(TESSERA_F32, {4, 2, 16, 8, 1}), table = ints({0, 1}), used = ints({8, 8});
  expect_refused(TESSERA_NOT_IMPLEMENTED, "k has 5 axes, as in the packed layout; expected pages [P, Hkv, ps, D]",
                 [&](SelectArgs& a) {
                   a.k = k;
                   a.page_table = table;
                   a.seqused_k = used;
                 });
}

TEST_P(SelectErrors, Options) {
  expect_invalid("topk", [](SelectArgs& a) { a.topk = 0; });
  expect_invalid("topk", [](SelectArgs& a) { a.topk = -3; });
  expect_invalid("block_size", [](SelectArgs& a) { a.block_size = -1; });
  expect_invalid("block_q", [](SelectArgs& a) { a.block_q = -1; });
  expect_invalid("local_blocks", [](SelectArgs& a) { a.local_blocks = -1; });
  expect_invalid("init_blocks", [](SelectArgs& a) { a.init_blocks = -1; });
  expect_invalid("local_blocks", [](SelectArgs& a) { a.local_blocks = a.topk; });
  expect_invalid("init_blocks", [](SelectArgs& a) { a.local_blocks = a.init_blocks = INT64_MAX; });
  if (GetParam() == Selector::kMoba) return;
  const float scales[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  for (const float& scale : scales) expect_invalid("softmax_scale", [&](SelectArgs& a) { a.softmax_scale = &scale; });
  expect_invalid("stride", [](SelectArgs& a) { a.stride = -1; });
}

TEST_P(SelectErrors, Inputs) {
  expect_invalid("q", [](SelectArgs& a) { a.q = {}; });
  expect_invalid("k", [](SelectArgs& a) { a.k = {}; });
  expect_invalid("q", [](SelectArgs& a) { a.q.ndim = 3; });
  expect_invalid("k", [](SelectArgs& a) { a.k.ndim = 5; });
  expect_type_error("q", [](SelectArgs& a) { a.q.dtype = TESSERA_I32; });
  expect_type_error("k", [](SelectArgs& a) { a.k.dtype = TESSERA_OTHER_DTYPE; });
  expect_type_error("k", [](SelectArgs& a) { a.k.dtype = TESSERA_BF16; });
  expect_invalid("k", [](SelectArgs& a) { a.k.shape[0] = 1; });
  expect_invalid("k", [](SelectArgs& a) { a.k.shape[3] = 8; });
  expect_invalid("heads", [](SelectArgs& a) { a.q.shape[2] = 3; });
  expect_invalid("heads", [](SelectArgs& a) { a.k.shape[2] = 0; });
  expect_invalid("feature", [](SelectArgs& a) { a.q.shape[3] = a.k.shape[3] = 0; });
  expect_invalid("q", [](SelectArgs& a) { a.q.stride[3] = 2; });
  expect_invalid("k", [](SelectArgs& a) { a.k.stride[1] = -16; });
  expect_invalid("k", [](SelectArgs& a) { a.k.data = nullptr; });
  expect_type_error("q_offset", [](SelectArgs& a) { a.q_offset.dtype = TESSERA_F32; });
  expect_invalid("q_offset", [](SelectArgs& a) { a.q_offset.shape[0] = 3; });
  expect_refused(TESSERA_NOT_IMPLEMENTED, "head dims", [](SelectArgs& a) { a.q.shape[3] = a.k.shape[3] = 8193; });
}

TEST_P(SelectErrors, Indices) {
  expect_invalid("indices", [](SelectArgs& a) { a.indices = {}; });
  expect_invalid("indices", [](SelectArgs& a) { a.indices.ndim = 3; });
  expect_type_error("indices", [](SelectArgs& a) { a.indices.dtype = TESSERA_F32; });
  for (int axis = 0; axis < 4; ++axis) expect_invalid("indices", [=](SelectArgs& a) { ++a.indices.shape[axis]; });
  expect_invalid("indices", [](SelectArgs& a) { a.topk = 5; });
  expect_invalid("indices", [](SelectArgs& a) { a.indices.stride[3] = 0; });
  expect_invalid("indices overlaps q", [](SelectArgs& a) { a.indices.data = a.q.data; });
  expect_invalid("indices overlaps k", [](SelectArgs& a) { a.indices.data = a.k.data; });
}

TEST_P(SelectErrors, Calls) {
  tessera_context context = {};
  context.variant = "avx7";
  expect_refused(
      TESSERA_INVALID_ARGUMENT, "avx7", [](SelectArgs&) {}, context);
  EXPECT_EQ(tessera_mass_select(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_moba_select(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
}

TEST_P(SelectErrors, VariantsThatDoNotApply) {
  const TestTensor to = call.indices();
  SelectArgs a = call.args();
  a.indices = to;
  const tessera_context context = with_variant("avx512bf16");  // takes bf16 alone, and only where the CPU has it
  EXPECT_EQ(select(GetParam(), a, &context), TESSERA_NOT_IMPLEMENTED);
  EXPECT_NE(std::string(tessera_last_error()).find("avx512bf16"), std::string::npos) << tessera_last_error();
  EXPECT_TRUE(to.untouched());
}

}  // namespace
}  // namespace tessera::test
