// Contexts of more elements than 32 bits count, and memory that must not grow with rows times keys.
#include <gtest/gtest.h>

#include <string>

#include "lazy.h"
#include "msa_attention.h"

namespace tessera::test {
namespace {

class MsaScale : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Msa, MsaScale, testing::ValuesIn(variants()), [](const auto& test) { return test.param; });

// A context of 2^31 elements and a bit, of which the rows attend to the last 200 keys.
TEST_P(MsaScale, F50_OffsetsBeyond32Bits) {
  const int64_t before = int64_t{1} << 24, keys = before + 200, pages = before / 128 + 2;
  const Lazy k(static_cast<size_t>(pages) << 15), v(static_cast<size_t>(pages) << 15);
  if (k.data == MAP_FAILED || v.data == MAP_FAILED) GTEST_SKIP() << "8 GiB of address space are not to be had";
  const Msa call = make_msa(
      {.rows = {3}, .keys = {200}, .kv_heads = 1, .dim = 128, .dim_v = 128, .block = 128, .ids = cases::Ids::kAll},
      TESSERA_BF16);
  const tessera_context context = with_variant(GetParam().c_str());
  const Output want = call.run(context);

  const Shape packed = {keys, 1, 128}, paged = {pages, 1, 128, 128};
  const reference::View to_k(dense(k, TESSERA_BF16, packed)), to_v(dense(v, TESSERA_BF16, packed));
  for (int64_t i = 0; i < 200 * 128; ++i) {
    to_k.set(before * 128 + i, call.k.get(i));
    to_v.set(before * 128 + i, call.v.get(i));
  }
  const TestTensor ids = call.ids.clone(), cu_k = ints({0, keys}), used = ints({keys});
  for (int64_t i = 0; i < ids.elements(); ++i) ids.values().set(i, static_cast<double>(before / 128 + i % 2));
  TestTensor table(TESSERA_I32, {1, pages});
  for (int64_t i = 0; i < pages; ++i) table.set(i, static_cast<double>(i));
  for (const Shape& shape : {packed, paged}) {
    const Output got = call.output();
    MsaArgs a = call.args_into(got);
    a.k = dense(k, TESSERA_BF16, shape);
    a.v = dense(v, TESSERA_BF16, shape);
    a.q2k_indices = ids;
    a.sequences.cu_seqlens_k = {};
    if (shape == packed) {
      a.sequences.cu_seqlens_k = cu_k;
    } else {
      a.sequences.page_table = table;
      a.sequences.seqused_k = used;
    }
    ASSERT_EQ(tessera_msa_sparse_attention(&a, &context), TESSERA_OK) << tessera_last_error();
    EXPECT_EQ(got, want);
  }
}

TEST_P(MsaScale, F53_MemoryOfRowsTimesKeys) {
  tessera_context context = with_variant(GetParam().c_str());
  context.executor = {TESSERA_EXECUTOR_THREADS, 2, 0, 0, nullptr, nullptr};
  const auto workspace_of = [&](int64_t n) {
    const Lazy q(size_t{1} << 26), keys(size_t{1} << 22), ids(size_t{1} << 20), out(size_t{1} << 26);
    const TestTensor cu = ints({0, n});
    MsaArgs a = {};
    a.q = dense(q, TESSERA_BF16, {n, 16, 128});
    a.k = a.v = dense(keys, TESSERA_BF16, {n, 1, 128});
    a.q2k_indices = dense(ids, TESSERA_I32, {1, n, 16});
    a.sequences.cu_seqlens_q = a.sequences.cu_seqlens_k = cu;
    a.out = dense(out, TESSERA_BF16, {n, 16, 128});
    size_t bytes = 0;
    EXPECT_EQ(tessera_msa_sparse_attention_workspace_size(&a, &context, &bytes), TESSERA_OK) << tessera_last_error();
    return bytes;
  };
  const size_t at_8k = workspace_of(8192), at_16k = workspace_of(16384);
  EXPECT_LE(at_16k, 2 * at_8k);
  EXPECT_LT(at_16k, size_t{64} << 20);  // a matrix of scores would take 1 GiB per head
}

}  // namespace
}  // namespace tessera::test
