// Selection with 8-bit copies of the keys: the same lists as without, whatever the keys are; and the copies themselves.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attention_bits.h"
#include "qsa_index.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Copies {
  TestTensor codes, scales;
};

Copies copies_of(const tessera_tensor& keys, const tessera_context& context = {}) {
  const Shape shape(keys.shape, keys.shape + keys.ndim);
  const Shape rows(shape.begin(), shape.end() - 1);
  Copies made = {TestTensor(TESSERA_I8, shape), TestTensor(TESSERA_F32, rows, gappy_strides(rows, 2))};
  const tessera_qsa_screen_keys_args args = {keys, made.codes, made.scales};
  EXPECT_EQ(tessera_qsa_screen_keys(&args, &context), TESSERA_OK) << tessera_last_error();
  return made;
}

Bits screened(const QsaIndex& call, const Copies& copies, const tessera_context& context) {
  const TestTensor ids = call.indices_tensor();
  tessera_qsa_select_args args = call.select_args(ids);
  args.screen_codes = copies.codes;
  args.screen_scales = copies.scales;
  EXPECT_EQ(tessera_qsa_select(&args, &context), TESSERA_OK) << tessera_last_error();
  expect_clean(ids, "indices");
  return ids.all_bits();
}

// Feature d of key i.
using Fill = std::function<double(int64_t i, int64_t d)>;

struct Content {
  const char* name;
  Fill fill;
};

double noise(int64_t i, int64_t d) {
  Random random(static_cast<uint64_t>(i * 1024 + d));
  return random.normal();
}

const Content kContents[] = {
    {"random", noise},
    {"a cluster", [](int64_t i, int64_t d) { return 1 + 1e-3 * noise(i, d); }},
    {"equal", [](int64_t, int64_t d) { return 1 + 0.25 * static_cast<double>(d); }},
    {"zeros", [](int64_t, int64_t) { return 0.0; }},
    {"ascending", [](int64_t i, int64_t) { return static_cast<double>(i) / 4096; }},
    {"descending", [](int64_t i, int64_t) { return 1 - static_cast<double>(i) / 4096; }},
    {"subnormal", [](int64_t i, int64_t d) { return 1e-40 * noise(i, d); }},
    {"tiny", [](int64_t i, int64_t d) { return 0x1p-38 * noise(i, d); }},
    {"huge", [](int64_t i, int64_t d) { return i % 3 == 0 ? 60000 * noise(i, d) : noise(i, d); }},
    {"NaN and infinity",
     [](int64_t i, int64_t d) {
       return i % 7 == 3 && d == 2 ? std::nan("") : i % 11 == 5 && d == 1 ? kInf : i % 13 == 5 ? -kInf : noise(i, d);
     }},
    // All features but one lie half a step above their codes; late ones are the best by less than that.
    {"the largest errors",
     [](int64_t i, int64_t d) { return d == 0 ? 127.0 : static_cast<double>((i * 7 + d * 3) % 5) + 0.4999; }},
    {"errors that cancel", [](int64_t i, int64_t d) { return d == 0 ? 127.0 : (i % 2 != 0 ? 0.5 : 0.49); }},
};

void fill(QsaIndex* call, const Fill& f) {
  TestTensor& keys = call->key_memory();
  for (int64_t b = 0; b < call->shape.requests; ++b) {
    for (int64_t g = 0; g < call->keys_of(b); ++g) {
      for (int64_t d = 0; d < call->shape.dim; ++d) keys.set(call->key_at(b, g) + d, f(g, d));
    }
  }
}

class QsaScreen : public testing::TestWithParam<Choice> {
 protected:
  tessera_context context() const { return with_variant(GetParam().variant.c_str()); }
  void expect_same(const QsaIndex& call) const {
    const Copies copies = copies_of(call.key_view(), context());
    EXPECT_EQ(screened(call, copies, context()), call.select(context()).all_bits());
  }
};
INSTANTIATE_TEST_SUITE_P(Qsa, QsaScreen, testing::ValuesIn(choices()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(QsaScreen, ChangesNoBit) {
  const QsaCase kCases[] = {
      {.queries = 1, .keys = 1500, .topk = 9},
      {.queries = 2, .keys = 1300, .heads = 7, .dim = 32, .topk = 5},
      {.requests = 2, .queries = 1, .keys = 1200, .page_size = 24, .keys_of = {1200, 700}, .weights = true, .topk = 7},
  };
  for (const QsaCase& c : kCases) {
    QsaIndex call(c, GetParam().dtype);
    for (int64_t i = 0; c.weights && i < call.weights.elements(); ++i) {
      call.weights.set(i, i % 3 == 0 ? 0.0 : std::abs(call.weights.get(i)));
    }
    for (const Content& content : kContents) {
      for (bool positive : {false, true}) {
        SCOPED_TRACE(std::string(content.name) + (positive ? ", q positive" : ""));
        fill(&call, content.fill);
        for (int64_t i = 0; positive && i < call.q.elements(); ++i) call.q.set(i, std::abs(call.q.get(i)));
        expect_same(call);
      }
    }
  }
}

TEST_P(QsaScreen, LeavesRowsAloneThatItHasNoBoundFor) {
  const QsaCase kCases[] = {
      {.queries = 1, .keys = 900, .weights = true, .topk = 3},  // of both signs
      {.queries = 1, .keys = 900, .dim = 24, .topk = 3},
      {.queries = 5, .keys = 900, .topk = 3},
      {.queries = 1, .keys = 900, .scale = 1e-20f, .topk = 3},
  };
  for (const QsaCase& c : kCases) expect_same(QsaIndex(c, GetParam().dtype));
  for (const double x : {std::nan(""), static_cast<double>(kInf), 1e-39}) {
    QsaIndex call({.queries = 1, .keys = 900, .topk = 3}, GetParam().dtype);
    for (int64_t i = 0; i < call.q.elements(); i += x < 1 ? 1 : 100) call.q.set(i, x);
    expect_same(call);
  }
}

TEST_P(QsaScreen, IsTheSameForEveryNumberOfThreads) {
  const QsaIndex call({.queries = 2, .keys = 200000, .topk = 40}, GetParam().dtype);
  const Copies copies = copies_of(call.key_view());
  const Bits want = call.select(context()).all_bits();
  for (int n : {1, 2, 3}) {
    tessera_context threads = context();
    threads.executor = {TESSERA_EXECUTOR_THREADS, n, 0, 0, nullptr, nullptr};
    EXPECT_EQ(screened(call, copies, threads), want) << n;
  }
}

// Zero scales say that no key reaches any bar: the first tiles have made one, and from then on no key is read.
TEST_P(QsaScreen, IsBelieved) {
  QsaIndex call({.queries = 1, .keys = 3000, .topk = 4}, GetParam().dtype);
  fill(&call, [](int64_t i, int64_t) { return static_cast<double>(i); });
  for (int64_t i = 0; i < call.q.elements(); ++i) call.q.set(i, 1);
  Copies copies = copies_of(call.key_view());
  copies.scales.fill(0);
  EXPECT_NE(screened(call, copies, context()), call.select(context()).all_bits());
}

TEST_P(QsaScreen, WrongCopiesDoNoHarm) {
  QsaIndex call({.requests = 2, .queries = 1, .keys = 1200, .page_size = 24, .topk = 7}, GetParam().dtype);
  Copies copies = copies_of(call.key_view());
  copies.codes.fill(-128);
  for (const float scale : {-1.0f, 0.0f, 1e-45f, 3e38f, kInf, -kInf, std::nanf("")}) {
    copies.scales.fill(scale);
    for (const uint32_t id : screened(call, copies, context())) EXPECT_LT(static_cast<int32_t>(id), 1200);
  }
}

TEST(QsaScreenKeys, AreWhatTheReferenceSays) {
  tessera_context reference = {};
  reference.backend = TESSERA_BACKEND_REFERENCE;
  for (const tessera_dtype dtype : {TESSERA_BF16, TESSERA_F16, TESSERA_F32}) {
    for (const Content& content : kContents) {
      TestTensor keys(dtype, {3, 50, 19}, gappy_strides({3, 50, 19}, 1));
      for (int64_t i = 0; i < keys.elements(); ++i) keys.set(i, content.fill(i / 19, i % 19));
      const Copies got = copies_of(keys), want = copies_of(keys, reference);
      EXPECT_EQ(got.scales.all_bits(), want.scales.all_bits()) << content.name;
      EXPECT_TRUE(got.scales.gaps_untouched());
      for (int64_t i = 0; i < keys.elements(); ++i) {
        EXPECT_LE(std::abs(got.codes.get(i) - want.codes.get(i)), 1) << content.name;
        const double scale = got.scales.get(i / 19);
        if (std::isnan(scale)) continue;
        EXPECT_LE(std::abs(keys.get(i) - scale * got.codes.get(i)), scale * (0.5 + 0x1p-15)) << content.name;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
