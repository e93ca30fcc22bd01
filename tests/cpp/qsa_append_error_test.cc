// What qsa_append_keys refuses, before anything is written and by name.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "qsa_append.h"

namespace tessera::test {
namespace {

enum class Form { kDense, kPaged, kPacked };

struct Refused {
  explicit Refused(Form form)
      : engine({.keys = {.requests = 3, .tokens = 20}, .page_size = form == Form::kDense ? 0 : 2}, TESSERA_BF16),
        raw(TESSERA_BF16, form == Form::kPacked ? Shape{15, 32} : Shape{3, 5, 32}),
        cu(TESSERA_I32, {4}),
        lens(TESSERA_I32, {3}) {
    args = {
        raw, {}, lens, engine.keys.rule(), {}, {}, {}, engine.ring, engine.ring_slots, engine.cache, engine.page_table};
    if (form == Form::kPacked) args.cu_seqlens_q = cu;
    for (int64_t i = 0; i < 3; ++i) lens.set(i, 0);
    for (int64_t i = 0; i < 4; ++i) cu.set(i, static_cast<double>(5 * i));
    raw.fill(1);
  }

  Engine engine;
  TestTensor raw, cu, lens;
  AppendKeysArgs args;
};

void refused(tessera_status status, const std::string& message, const std::function<void(AppendKeysArgs&)>& spoil,
             std::initializer_list<Form> forms = {Form::kDense, Form::kPaged, Form::kPacked}) {
  SCOPED_TRACE(message);
  for (const Form form : forms) {
    for (const tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
      Refused call(form);
      spoil(call.args);
      tessera_context context = {};
      context.backend = backend;
      EXPECT_EQ(tessera_qsa_append_keys(&call.args, &context), status);
      EXPECT_EQ(std::string(tessera_last_error()).rfind("qsa_append_keys: " + message, 0), 0u) << tessera_last_error();
      EXPECT_TRUE(call.engine.cache.untouched() && call.engine.ring.untouched());
    }
  }
}
void invalid(const std::string& message, const std::function<void(AppendKeysArgs&)>& spoil,
             std::initializer_list<Form> forms = {Form::kDense, Form::kPaged, Form::kPacked}) {
  refused(TESSERA_INVALID_ARGUMENT, message, spoil, forms);
}

TEST(QsaAppendErrors, Requests) {
  static const TestTensor cu(TESSERA_I32, {4}), none(TESSERA_I32, {0});
  invalid("raw_keys [B, n, D] or [total, D] is missing", [](AppendKeysArgs& a) { a.raw_keys = {}; });
  invalid("raw_keys has 1 axes; expected [B, n, D] or [total, D]", [](AppendKeysArgs& a) { a.raw_keys.ndim = 1; });
  invalid("raw_keys has stride 2 in its last axis",
          [](AppendKeysArgs& a) { a.raw_keys.stride[a.raw_keys.ndim - 1] = 2; });
  invalid("cu_seqlens_q is for packed rows; raw_keys have an axis for the requests",
          [](AppendKeysArgs& a) { a.cu_seqlens_q = cu; }, {Form::kDense, Form::kPaged});
  invalid("cu_seqlens_q [B + 1] is missing", [](AppendKeysArgs& a) { a.cu_seqlens_q = {}; }, {Form::kPacked});
  invalid("cu_seqlens_q is empty; it has B + 1 entries", [](AppendKeysArgs& a) { a.cu_seqlens_q = none; },
          {Form::kPacked});
  invalid("seq_lens [B] is missing", [](AppendKeysArgs& a) { a.seq_lens = {}; });
  invalid("seq_lens [2] has size 2 in axis 0; expected 3 (B)", [](AppendKeysArgs& a) { a.seq_lens.shape[0] = 2; });
  refused(TESSERA_TYPE_ERROR, "raw_keys is int32", [](AppendKeysArgs& a) { a.raw_keys.dtype = TESSERA_I32; });
  refused(TESSERA_TYPE_ERROR, "seq_lens is float32", [](AppendKeysArgs& a) { a.seq_lens.dtype = TESSERA_F32; });
}

TEST(QsaAppendErrors, RuleAndRotation) {
  static const TestTensor positions(TESSERA_I32, {3, 2}), cos(TESSERA_F32, {3, 2, 8}), other(TESSERA_F32, {3, 3, 8});
  invalid("norm_weight [D] is missing", [](AppendKeysArgs& a) { a.rule.norm_weight = {}; });
  invalid("block_size is -1; expected at least 1", [](AppendKeysArgs& a) { a.rule.block_size = -1; });
  invalid("rotary_dim is 33; expected an even number from 0 to D, 32",
          [](AppendKeysArgs& a) { a.rule.rotary_dim = 33; });
  invalid("block_positions has 1 axes; expected [B, M]", [](AppendKeysArgs& a) {
    a.block_positions = positions;
    a.block_positions.ndim = 1;
  });
  invalid("block_positions [2, 2] has size 2 in axis 0; expected 3 (B of raw_keys)", [](AppendKeysArgs& a) {
    a.block_positions = positions;
    a.block_positions.shape[0] = 2;
  });
  invalid("block_positions and cos with sin exclude each other", [](AppendKeysArgs& a) {
    a.block_positions = positions;
    a.cos = a.sin = cos;
  });
  invalid("sin [B, M, rotary_dim / 2] is missing", [](AppendKeysArgs& a) { a.cos = cos; });
  invalid("sin [3, 3, 8] has size 3 in axis 1; expected 2 (blocks of cos)", [](AppendKeysArgs& a) {
    a.cos = cos;
    a.sin = other;
  });
  invalid("ring overlaps cos", [](AppendKeysArgs& a) {
    a.cos = a.sin = cos;
    a.cos.data = a.ring.data;
  });
}

TEST(QsaAppendErrors, Ring) {
  invalid("ring [slots, capacity, D] is missing", [](AppendKeysArgs& a) { a.ring = {}; });
  invalid("ring has 2 axes", [](AppendKeysArgs& a) { a.ring.ndim = 2; });
  invalid("ring [5, 3, 31] has size 31 in axis 2; expected 32 (D of raw_keys)",
          [](AppendKeysArgs& a) { a.ring.shape[2] = 31; });
  invalid("ring has room for 2 tokens of a request; expected at least 3, block_size - 1",
          [](AppendKeysArgs& a) { a.ring.shape[1] = 2; });
  invalid("ring has 2 slots for 3 requests; ring_slots is missing", [](AppendKeysArgs& a) {
    a.ring_slots = {};
    a.ring.shape[0] = 2;
  });
  invalid("ring_slots [2] has size 2 in axis 0; expected 3 (B)", [](AppendKeysArgs& a) { a.ring_slots.shape[0] = 2; });
  invalid("ring has stride 2 in its last axis", [](AppendKeysArgs& a) { a.ring.stride[2] = 2; });
  invalid("ring overlaps itself", [](AppendKeysArgs& a) { a.ring.stride[0] = 0; });
  invalid("ring overlaps raw_keys", [](AppendKeysArgs& a) { a.raw_keys.data = a.ring.data; });
  invalid("ring overlaps norm_weight", [](AppendKeysArgs& a) { a.rule.norm_weight.data = a.ring.data; });
  invalid("ring overlaps ring_slots", [](AppendKeysArgs& a) { a.ring_slots.data = a.ring.data; });
  refused(TESSERA_TYPE_ERROR, "ring is float16 but raw_keys is bfloat16",
          [](AppendKeysArgs& a) { a.ring.dtype = TESSERA_F16; });
}

TEST(QsaAppendErrors, Cache) {
  const auto pages = {Form::kPaged, Form::kPacked};
  invalid("cache [B, N, D]; pages come with page_table is missing", [](AppendKeysArgs& a) { a.cache = {}; },
          {Form::kDense});
  invalid(
      "cache [P, ps, D] or [P, ps, 1, D] is missing", [](AppendKeysArgs& a) { a.cache = {}; }, pages);
  invalid("cache has 2 axes", [](AppendKeysArgs& a) { a.cache.ndim = 2; });
  invalid("cache has 4 axes; expected [B, N, D]; pages come with page_table",
          [](AppendKeysArgs& a) {
            a.cache.ndim = 4;
            a.cache.shape[2] = 1;
            a.cache.shape[3] = 32;
            a.cache.stride[3] = 1;
          },
          {Form::kDense});
  invalid(
      "cache [15, 2, 2, 16] has size 2 in axis 2; expected 1 (one key head)",
      [](AppendKeysArgs& a) {
        a.cache.ndim = 4;
        a.cache.shape[0] = 15;
        a.cache.shape[2] = 2;
        a.cache.shape[3] = 16;
        a.cache.stride[2] = 16;
        a.cache.stride[3] = 1;
      },
      pages);
  invalid("cache [2, 5, 32] has size 2 in axis 0; expected 3 (B)", [](AppendKeysArgs& a) { a.cache.shape[0] = 2; },
          {Form::kDense});
  invalid(
      "page_table has 1 axes; expected [B, max_pages]", [](AppendKeysArgs& a) { a.page_table.ndim = 1; }, pages);
  invalid(
      "page_table [2, 3] has size 2 in axis 0; expected 3 (B)", [](AppendKeysArgs& a) { a.page_table.shape[0] = 2; },
      pages);
  invalid("cache overlaps itself", [](AppendKeysArgs& a) { a.cache.stride[1] = 31; });
  invalid("cache overlaps raw_keys", [](AppendKeysArgs& a) { a.raw_keys.data = a.cache.data; });
  invalid(
      "cache overlaps page_table", [](AppendKeysArgs& a) { a.page_table.data = a.cache.data; }, pages);
  invalid("cache overlaps ring", [](AppendKeysArgs& a) { a.cache.data = a.ring.data; });
  refused(TESSERA_TYPE_ERROR, "cache is float16 but raw_keys is bfloat16",
          [](AppendKeysArgs& a) { a.cache.dtype = TESSERA_F16; });
}

TEST(QsaAppendErrors, Calls) {
  EXPECT_EQ(tessera_qsa_append_keys(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(tessera_last_error()), "qsa_append_keys: args is null");
  Refused call(Form::kPaged);
  tessera_context context = {};
  context.variant = "avx512bf16";
  EXPECT_EQ(tessera_qsa_append_keys(&call.args, &context), TESSERA_NOT_IMPLEMENTED);
  EXPECT_TRUE(call.engine.cache.untouched() && call.engine.ring.untouched());
}

}  // namespace
}  // namespace tessera::test
