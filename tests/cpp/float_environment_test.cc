// Whatever floating-point environment the host's threads have, a call gives the bits that it gives in the standard one, and
// leaves that environment as it was, flags included.
#include <gtest/gtest.h>

#include <cfenv>
#include <string>
#include <thread>
#include <vector>

#include "attention.h"
#include "attention_bits.h"
#include "msa_attention.h"
#include "msa_index.h"
#include "qsa_append.h"
#include "qsa_attention.h"
#include "qsa_index.h"
#include "select.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tessera::test {
namespace {

// ---- What a host may have set ----

uint64_t control() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
#else
  return static_cast<uint64_t>(std::fegetround());
#endif
}

void flush_subnormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  // FTZ, DAZ
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(control() | 1u << 24 | 1u << 19));  // FZ, FZ16
#endif
}

// Every exception would end the process. Not all Arm CPUs can trap.
void trap() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() & ~0x1f80u);
#endif
}

struct Host {
  const char* name;
  void (*set)();
};
constexpr Host kHosts[] = {
    {"flushes subnormals", flush_subnormals},
    {"rounds up", [] { std::fesetround(FE_UPWARD); }},
    {"rounds to zero, flushes",
     [] {
       std::fesetround(FE_TOWARDZERO);
       flush_subnormals();
     }},
    {"traps", trap},
};

// ---- Calls ----

void host_parallel_for(void* host, int32_t n, void (*body)(void* arg, int32_t i), void* arg) {
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < n; ++i) {
    threads.emplace_back([=] {
      static_cast<const Host*>(host)->set();
      const uint64_t before = control();
      body(arg, i);
      EXPECT_EQ(control(), before);
    });
  }
  for (std::thread& t : threads) t.join();
}

// `call(context)` fills `outputs`.
template <class Call>
void expect_environment_kept(const Choice& choice, const std::vector<TestTensor>& outputs, const Call& call) {
  std::vector<Bits> want;
  for (const Host& host : kHosts) {
    SCOPED_TRACE(choice.name() + ", " + host.name);
    tessera_context context = with_variant(choice.variant.c_str());
    context.executor.kind = TESSERA_EXECUTOR_THREADS;
    context.executor.num_threads = 1;
    if (want.empty()) {
      ASSERT_EQ(call(&context), TESSERA_OK) << tessera_last_error();
      for (const TestTensor& t : outputs) want.push_back(t.all_bits());
    }
    for (const int threads : {1, 3, -2}) {
      if (threads < 0) {
        context.executor.kind = TESSERA_EXECUTOR_PARALLEL_FOR;
        context.executor.parallel_for = host_parallel_for;
        context.executor.host = const_cast<Host*>(&host);
      }
      context.executor.num_threads = std::abs(threads);
      for (TestTensor t : outputs) t.clear();
      std::fenv_t mine;
      std::fegetenv(&mine);
      std::feclearexcept(FE_ALL_EXCEPT);
      host.set();
      const uint64_t before = control();
      const tessera_status status = call(&context);
      const uint64_t after = control();
      const int flags = std::fetestexcept(FE_ALL_EXCEPT);
      std::fesetenv(&mine);
      EXPECT_EQ(status, TESSERA_OK) << tessera_last_error();
      EXPECT_EQ(after, before);
      EXPECT_EQ(flags, 0);
      for (size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(outputs[i].all_bits(), want[i]) << "output " << i;
    }
  }
}

// Subnormal numbers, also as results, and products that overflow.
void make_extreme(TestTensor t) {
  const double range = t.view().dtype == TESSERA_F16 ? 0x1p-20 : 0x1p-132;
  for (int64_t i = 0; i < t.elements(); i += 5) t.set(i, t.get(i) * range);
}

class FloatEnvironmentKept : public testing::TestWithParam<Choice> {
 protected:
  tessera_dtype dtype() const { return GetParam().dtype; }
  template <class Call>
  void expect_kept(const std::vector<TestTensor>& outputs, const Call& call) const {
    expect_environment_kept(GetParam(), outputs, call);
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, FloatEnvironmentKept, testing::ValuesIn(choices(kFloats)),
                         [](const auto& test) { return test.param.name(); });

TEST_P(FloatEnvironmentKept, ByAttention) {
  Attention call = make_attention({.queries = 30, .keys = 150, .group = 4, .block = 16, .block_q = 8}, dtype());
  for (const TestTensor& t : {call.q, call.k, call.v}) make_extreme(t);
  const Output to = call.output();
  const Args a = call.args_into(to);
  expect_kept({to.out, to.lse}, [&](const tessera_context* c) { return tessera_block_sparse_gqa_prefill(&a, c); });
}

TEST_P(FloatEnvironmentKept, ByPackedRows) {
  const Msa call = make_msa({.rows = {9, 1, 3}, .keys = {90, 300, 40}, .width = 20, .page = 24}, dtype());
  for (const TestTensor& t : {call.q, call.k, call.v}) make_extreme(t);
  const Output to = call.output();
  const MsaArgs a = call.args_into(to);
  expect_kept({to.out, to.lse}, [&](const tessera_context* c) { return tessera_msa_sparse_attention(&a, c); });
}

TEST_P(FloatEnvironmentKept, ByTokenLists) {
  const TokenAttn call({.requests = 2, .queries = 5, .keys = 300, .width = 100, .gate = Gate::kFeatures}, dtype());
  for (const TestTensor& t : {call.q, call.k, call.v}) make_extreme(t);
  const Output to = call.output();
  const TokenArgs a = call.args_into(to);
  expect_kept({to.out}, [&](const tessera_context* c) { return tessera_qsa_sparse_attention(&a, c); });
}

TEST_P(FloatEnvironmentKept, BySelections) {
  const Select call({}, dtype());
  const TestTensor indices = call.indices();
  SelectArgs a = call.args();
  a.indices = indices;
  for (const Selector s : kSelectors) {
    if (!takes(s, GetParam().variant, dtype())) continue;
    expect_kept({indices}, [&](const tessera_context* c) { return select(s, a, c); });
  }
}

TEST_P(FloatEnvironmentKept, ByIndexers) {
  const Index call({.requests = 2, .keys = 300, .dim = 8, .keys_form = Form::kPaged}, dtype());
  const TestTensor scores = call.scores_tensor(), ids = call.indices_tensor();
  const auto a = call.scores_args(scores);
  const auto b = call.select_args(ids);
  expect_kept({scores}, [&](const tessera_context* c) { return tessera_msa_block_scores(&a, c); });
  expect_kept({ids}, [&](const tessera_context* c) { return tessera_msa_select(&b, c); });
  const QsaIndex qsa({.requests = 2, .queries = 5, .keys = 500, .dim = 8, .page_size = 24}, dtype());
  const TestTensor selected = qsa.indices_tensor(), tokens = qsa.tokens_tensor();
  const auto d = qsa.select_args(selected, tokens);
  expect_kept({selected, tokens}, [&](const tessera_context* c) { return tessera_qsa_select(&d, c); });
}

TEST_P(FloatEnvironmentKept, ByCompressedKeysAndMerges) {
  if (of_pairs(GetParam().variant)) GTEST_SKIP() << "all is f32";
  const Engine engine({.keys = {.requests = 3, .tokens = 60}, .page_size = 3}, dtype());
  make_extreme(engine.keys.raw);
  const TestTensor keys = engine.keys.out();
  const auto a = engine.keys.args(keys);
  expect_kept({keys}, [&](const tessera_context* c) { return tessera_qsa_compress_keys(&a, c); });

  Random random(7);
  std::vector<TestTensor> o = {{TESSERA_F32, {9, 3, 24}}, {TESSERA_F32, {9, 3, 24}}};
  std::vector<TestTensor> l = {{TESSERA_F32, {9, 3}}, {TESSERA_F32, {9, 3}}}, m = {l[0].clone(), l[1].clone()};
  for (size_t i = 0; i < o.size(); ++i) {
    o[i].fill_normal(random);
    make_extreme(o[i]);
    l[i].fill(1.5);
    m[i].fill_normal(random);
  }
  const std::vector<tessera_tensor> os(o.begin(), o.end()), ls(l.begin(), l.end()), ms(m.begin(), m.end());
  const TestTensor out(dtype(), {9, 3, 24});
  const tessera_cp_merge_args b = {os.data(), ls.data(), ms.data(), 2, out};
  expect_kept({out}, [&](const tessera_context* c) { return tessera_cp_merge(&b, c); });
}

TEST(FloatEnvironment, IsKeptByCallsThatFail) {
  std::fenv_t mine;
  std::fegetenv(&mine);
  std::fesetround(FE_DOWNWARD);
  std::feclearexcept(FE_ALL_EXCEPT);
  std::feraiseexcept(FE_DIVBYZERO);
  EXPECT_EQ(tessera_merge_states(nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  const int rounding = std::fegetround(), flags = std::fetestexcept(FE_ALL_EXCEPT);
  std::fesetenv(&mine);
  EXPECT_EQ(rounding, FE_DOWNWARD);
  EXPECT_EQ(flags, FE_DIVBYZERO);
}

}  // namespace
}  // namespace tessera::test
