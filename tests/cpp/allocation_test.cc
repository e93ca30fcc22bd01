// A call with the shapes of an earlier one takes nothing from the heap.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "attention.h"
#include "msa_attention.h"
#include "msa_index.h"
#include "qsa_append.h"
#include "qsa_attention.h"
#include "qsa_index.h"
#include "select.h"

namespace {

std::atomic<int64_t> allocations = 0;

void* allocate(std::size_t bytes) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

}  // namespace

// Not inlined: GCC takes free() on what it sees come from `new` for a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* p = allocate(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }

namespace tessera::test {
namespace {

template <class Call>
void expect_no_allocation(const char* name, const Call& call) {
  tessera_context context = {};
  context.executor.kind = TESSERA_EXECUTOR_THREADS;
  for (const int threads : {1, 2}) {
    context.executor.num_threads = threads;
    ASSERT_EQ(call(&context), TESSERA_OK) << tessera_last_error();
    const int64_t before = allocations;
    const tessera_status status = call(&context);
    EXPECT_EQ(allocations - before, 0) << name << ", " << threads << " threads";
    EXPECT_EQ(status, TESSERA_OK);
  }
}

TEST(Allocation, NoneAfterTheFirstCallOfAttention) {
  const Attention call = make_attention({.queries = 70, .keys = 150}, TESSERA_BF16);
  const Output out = call.output();
  const State state = call.state();
  const Args a = call.args_into(out), b = call.args_into(state);
  expect_no_allocation("block_sparse_gqa_prefill",
                       [&](const tessera_context* c) { return tessera_block_sparse_gqa_prefill(&a, c); });
  expect_no_allocation("block_sparse_gqa_prefill_state",
                       [&](const tessera_context* c) { return tessera_block_sparse_gqa_prefill_state(&b, c); });
}

TEST(Allocation, NoneAfterTheFirstCallOfPackedAndPagedAttention) {
  for (const int64_t page : {0, 24}) {
    const Msa call = make_msa({.rows = {40, 1, 3}, .keys = {90, 2100, 40}, .width = 140, .page = page}, TESSERA_BF16);
    const Output out = call.output();
    const MsaArgs a = call.args_into(out);
    expect_no_allocation("msa_sparse_attention",
                         [&](const tessera_context* c) { return tessera_msa_sparse_attention(&a, c); });
  }
}

TEST(Allocation, NoneAfterTheFirstCallOfAnAppend) {
  const TestTensor k(TESSERA_BF16, {300, 2, 64}), v(TESSERA_BF16, {300, 2, 64}), slots(TESSERA_I32, {300});
  const TestTensor k_cache(TESSERA_BF16, {9, 2, 32, 64, 2}), v_cache(TESSERA_BF16, {9, 2, 32, 64, 2});
  for (int64_t i = 0; i < 300; ++i) slots.values().set(i, static_cast<double>(i + 20));
  const tessera_append_kv_args a = {k, v, slots, k_cache, v_cache};
  expect_no_allocation("append_kv", [&](const tessera_context* c) { return tessera_append_kv(&a, c); });
}

TEST(Allocation, NoneAfterTheFirstCallOfAMerge) {
  const std::vector<TestTensor> o = {{TESSERA_F32, {9, 3, 24}}, {TESSERA_F32, {9, 3, 24}}};
  const std::vector<TestTensor> l = {{TESSERA_F32, {9, 3}}, {TESSERA_F32, {9, 3}}}, m = {l[0].clone(), l[1].clone()};
  const TestTensor out(TESSERA_F32, {9, 3, 24}), lse(TESSERA_F32, {9, 3});
  const std::vector<tessera_tensor> os(o.begin(), o.end()), ls(l.begin(), l.end()), ms(m.begin(), m.end());
  const tessera_cp_merge_args a = {os.data(), ls.data(), ms.data(), 2, out};
  const tessera_merge_states_args b = {os.data(), ms.data(), 2, out, lse};
  expect_no_allocation("cp_merge", [&](const tessera_context* c) { return tessera_cp_merge(&a, c); });
  expect_no_allocation("merge_states", [&](const tessera_context* c) { return tessera_merge_states(&b, c); });
}

TEST(Allocation, NoneAfterTheFirstCallOfASelection) {
  const Select call({}, TESSERA_BF16);
  const TestTensor indices = call.indices();
  SelectArgs a = call.args();
  a.indices = indices;
  for (const Selector s : kSelectors) {
    expect_no_allocation(selector_name(s), [&](const tessera_context* c) { return select(s, a, c); });
  }
}

TEST(Allocation, NoneAfterTheFirstCallOfAnIndexer) {
  for (const int64_t keys : {300, 9000}) {  // the latter is cut along the keys
    const Index call({.requests = 2, .keys = keys, .dim = 8, .keys_form = Form::kPaged}, TESSERA_BF16);
    const TestTensor scores = call.scores_tensor(), ids = call.indices_tensor();
    const auto a = call.scores_args(scores);
    const auto b = call.select_args(ids);
    expect_no_allocation("msa_block_scores", [&](const tessera_context* c) { return tessera_msa_block_scores(&a, c); });
    expect_no_allocation("msa_select", [&](const tessera_context* c) { return tessera_msa_select(&b, c); });
  }
}

TEST(Allocation, NoneAfterTheFirstCallOfCompressedKeys) {
  Engine engine({.keys = {.requests = 20, .tokens = 300}, .page_size = 3}, TESSERA_BF16);
  const TestTensor out = engine.keys.out(), lens(TESSERA_I32, {20});
  lens.values().set_values(std::vector<double>(20, 2));
  const auto a = engine.keys.args(out);
  const AppendKeysArgs b = {
      engine.keys.raw,  {}, lens, engine.keys.rule(), {}, {}, {}, engine.ring, engine.ring_slots, engine.cache,
      engine.page_table};
  const TestTensor ids(TESSERA_I32, {30, 4, 64}), positions(TESSERA_I32, {30, 4}), tokens(TESSERA_I32, {30, 4, 259});
  const tessera_qsa_expand_blocks_args d = {ids, positions, 4, tokens};
  expect_no_allocation("qsa_compress_keys", [&](const tessera_context* c) { return tessera_qsa_compress_keys(&a, c); });
  expect_no_allocation("qsa_append_keys", [&](const tessera_context* c) { return tessera_qsa_append_keys(&b, c); });
  expect_no_allocation("qsa_expand_blocks", [&](const tessera_context* c) { return tessera_qsa_expand_blocks(&d, c); });
}

TEST(Allocation, NoneAfterTheFirstCallOfTokenLists) {
  for (const TokenForm form : {TokenForm::kBatch, TokenForm::kPaged}) {
    for (const int64_t splits : {0, 3}) {  // chunks are tasks, or are not
      const TokenAttn call({.requests = 3,
                            .queries = 7,
                            .keys = 700,
                            .width = 600,
                            .form = form,
                            .positions = Positions::kLast,
                            .lens_q = true,
                            .gate = Gate::kFeatures,
                            .splits = splits},
                           TESSERA_BF16);
      const Output to = call.output();
      const TokenArgs a = call.args_into(to);
      expect_no_allocation("qsa_sparse_attention",
                           [&](const tessera_context* c) { return tessera_qsa_sparse_attention(&a, c); });
    }
  }
  for (const int64_t queries : {1, 40}) {
    const QsaIndex call({.requests = 2, .queries = queries, .keys = 5000, .dim = 8, .page_size = 24}, TESSERA_BF16);
    const TestTensor ids = call.indices_tensor(), tokens = call.tokens_tensor();
    const auto a = call.select_args(ids, tokens);
    expect_no_allocation("qsa_select", [&](const tessera_context* c) { return tessera_qsa_select(&a, c); });
  }
}

}  // namespace
}  // namespace tessera::test
