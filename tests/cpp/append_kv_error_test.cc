// Bad calls of append_kv are refused by name, and nothing is written, by both backends.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "append_kv.h"

namespace tessera::test {
namespace {

using Args = tessera_append_kv_args;

void refused(tessera_status status, const std::string& message, bool packed, const std::function<void(Args&)>& spoil) {
  SCOPED_TRACE(message);
  const Append call({.dim_v = 8}, TESSERA_BF16, packed);
  for (const tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
    const Caches to = call.caches();
    Args a = call.args(to);
    spoil(a);
    tessera_context context = {};
    context.backend = backend;
    EXPECT_EQ(tessera_append_kv(&a, &context), status);
    EXPECT_EQ(std::string(tessera_last_error()).rfind("append_kv: " + message, 0), 0u) << tessera_last_error();
    EXPECT_TRUE(to.k.untouched() && to.v.untouched());
  }
}
void invalid(const std::string& message, bool packed, const std::function<void(Args&)>& spoil) {
  refused(TESSERA_INVALID_ARGUMENT, message, packed, spoil);
}

TEST(AppendKvErrors, Rows) {
  for (const bool packed : {false, true}) {
    invalid("k [n, Hkv, D] is missing", packed, [](Args& a) { a.k = {}; });
    invalid("v is missing; expected both of v and v_cache, or neither", packed, [](Args& a) { a.v = {}; });
    invalid("v_cache is missing; expected both of v and v_cache, or neither", packed, [](Args& a) { a.v_cache = {}; });
    invalid("k_cache", packed, [](Args& a) {
      a.v = a.v_cache = {};
      a.k_cache.shape[0] = -1;
    });
    invalid("slots [n] is missing", packed, [](Args& a) { a.slots = {}; });
    invalid("k has 2 axes", packed, [](Args& a) { a.k.ndim = 2; });
    invalid("slots has 2 axes", packed, [](Args& a) { a.slots.ndim = 2; });
    invalid("v [36, 2, 8] has size 36 in axis 0; expected 37 (n of k)", packed, [](Args& a) { a.v.shape[0] = 36; });
    invalid("v [37, 1, 8] has size 1 in axis 1; expected 2 (Hkv of k)", packed, [](Args& a) { a.v.shape[1] = 1; });
    invalid("slots [36] has size 36 in axis 0; expected 37 (n of k)", packed, [](Args& a) { a.slots.shape[0] = 36; });
    invalid("k has stride 2 in its last axis", packed, [](Args& a) { a.k.stride[2] = 2; });
    invalid("v has stride 2 in its last axis", packed, [](Args& a) { a.v.stride[2] = 2; });
    invalid("k and v need at least one feature", packed, [](Args& a) { a.k.shape[2] = 0; });
    invalid("k and v need at least one feature", packed, [](Args& a) { a.v.shape[2] = 0; });
    refused(TESSERA_TYPE_ERROR, "k is int32", packed, [](Args& a) { a.k.dtype = TESSERA_I32; });
    refused(TESSERA_TYPE_ERROR, "v is float16 but k is bfloat16", packed, [](Args& a) { a.v.dtype = TESSERA_F16; });
    refused(TESSERA_TYPE_ERROR, "slots is float32", packed, [](Args& a) { a.slots.dtype = TESSERA_F32; });
  }
}

TEST(AppendKvErrors, Caches) {
  for (const bool packed : {false, true}) {
    invalid("k_cache [P, Hkv, ps, D] or [P, Hkv, ceil(D/e), ps, e] is missing", packed,
            [](Args& a) { a.k_cache = {}; });
    invalid("k_cache has 3 axes", packed, [](Args& a) { a.k_cache.ndim = 3; });
    invalid(packed ? "v_cache has 4 axes" : "v_cache has 5 axes", packed,
            [=](Args& a) { a.v_cache.ndim = packed ? 4 : 5; });
    invalid("v_cache has stride 3 in its last axis", packed, [=](Args& a) { a.v_cache.stride[packed ? 4 : 3] = 3; });
    invalid("k_cache axis 0 has negative stride", packed, [](Args& a) { a.k_cache.stride[0] = -1; });
    invalid("k_cache overlaps itself", packed, [](Args& a) { a.k_cache.stride[1] = 0; });
    invalid("v_cache overlaps itself", packed, [](Args& a) { a.v_cache.stride[0] = 8; });
    invalid("k_cache overlaps k", packed, [](Args& a) { a.k.data = a.k_cache.data; });
    invalid("k_cache overlaps v", packed, [](Args& a) { a.v.data = a.k_cache.data; });
    invalid("v_cache overlaps k", packed, [](Args& a) { a.k.data = a.v_cache.data; });
    invalid("v_cache overlaps slots", packed, [](Args& a) { a.slots.data = a.v_cache.data; });
    invalid("v_cache overlaps k_cache", packed, [](Args& a) { a.v_cache.data = a.k_cache.data; });
    refused(TESSERA_TYPE_ERROR, "k_cache is float16 but k is bfloat16", packed,
            [](Args& a) { a.k_cache.dtype = TESSERA_F16; });
    refused(TESSERA_TYPE_ERROR, "v_cache is int32", packed, [](Args& a) { a.v_cache.dtype = TESSERA_I32; });
  }
}

TEST(AppendKvErrors, RowMajorSizes) {
  const auto size = [](int axis, int64_t n, const std::string& message, tessera_tensor Args::*cache) {
    invalid(message, false, [=](Args& a) { (a.*cache).shape[axis] = n; });
  };
  size(1, 1, "k_cache [5, 1, 16, 16] has size 1 in axis 1; expected 2 (Hkv of k)", &Args::k_cache);
  size(2, 15, "v_cache [5, 2, 16, 8] has size 16 in axis 2; expected 15 (ps of k_cache)", &Args::k_cache);
  size(3, 15, "k_cache [5, 2, 16, 15] has size 15 in axis 3; expected 16 (D of k)", &Args::k_cache);
  size(0, 4, "v_cache [4, 2, 16, 8] has size 4 in axis 0; expected 5 (P of k_cache)", &Args::v_cache);
  size(1, 1, "v_cache [5, 1, 16, 8] has size 1 in axis 1; expected 2 (Hkv of k)", &Args::v_cache);
  size(3, 7, "v_cache [5, 2, 16, 7] has size 7 in axis 3; expected 8 (Dv of v)", &Args::v_cache);
}

TEST(AppendKvErrors, PackedSizes) {
  const auto size = [](int axis, int64_t n, const std::string& message, tessera_tensor Args::*cache) {
    invalid(message, true, [=](Args& a) { (a.*cache).shape[axis] = n; });
  };
  size(1, 1, "k_cache [5, 1, 8, 16, 2] has size 1 in axis 1; expected 2 (Hkv of k)", &Args::k_cache);
  size(2, 7, "k_cache [5, 2, 7, 16, 2] has size 7 in axis 2; expected 8 (ceil(D/e), D of k)", &Args::k_cache);
  size(3, 17, "v_cache [5, 2, 8, 8, 2] has size 8 in axis 2; expected 9 (ceil(ps/e), ps of k_cache)", &Args::k_cache);
  size(4, 1, "k_cache [5, 2, 8, 16, 1] has size 1 in axis 4; expected 2 (e, the elements in 4 bytes)", &Args::k_cache);
  size(0, 4, "v_cache [4, 2, 8, 8, 2] has size 4 in axis 0; expected 5 (P of k_cache)", &Args::v_cache);
  size(3, 7, "v_cache [5, 2, 8, 7, 2] has size 7 in axis 3; expected 8 (Dv of v)", &Args::v_cache);
  size(4, 1, "v_cache [5, 2, 8, 8, 1] has size 1 in axis 4; expected 2 (e, the elements in 4 bytes)", &Args::v_cache);
  invalid("k_cache has stride 4 in axis 3; its last two axes are dense (stride 2)", true,
          [](Args& a) { a.k_cache.stride[3] = 4; });
}

TEST(AppendKvErrors, Calls) {
  EXPECT_EQ(tessera_append_kv(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(tessera_last_error()), "append_kv: args is null");
  const Append call({}, TESSERA_F32, false);
  const Caches to = call.caches();
  const Args a = call.args(to);
  const tessera_context context = with_variant("avx7");
  EXPECT_EQ(tessera_append_kv(&a, &context), TESSERA_INVALID_ARGUMENT);
  EXPECT_TRUE(to.k.untouched() && to.v.untouched());
}

}  // namespace
}  // namespace tessera::test
