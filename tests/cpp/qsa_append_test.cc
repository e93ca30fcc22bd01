// qsa_append_keys: however tokens are grouped into calls, and whatever is taken back, the cache gets the bits of compressing
// the whole; data that make no sense write nothing.
#include "qsa_append.h"

#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <string>
#include <vector>

#include "by_hand.h"

namespace tessera::test {
namespace {

std::vector<tessera_context> contexts() {
  std::vector<tessera_context> all(4);
  all[0].backend = TESSERA_BACKEND_REFERENCE;
  all[1].executor = {TESSERA_EXECUTOR_THREADS, 1, 0, 0, nullptr, nullptr};
  all[2].executor = {TESSERA_EXECUTOR_THREADS, 3, 0, 0, nullptr, nullptr};
  all[3].executor = {TESSERA_EXECUTOR_PART, 0, 0, 3, nullptr, nullptr};
  static const std::vector<std::string> names = key_variants();
  for (const std::string& name : names) {
    all.emplace_back();
    all.back().variant = name.c_str();
  }
  return all;
}

// Random calls until all tokens of all requests have been accepted.
void feed(Engine* engine, Random& random, int64_t most, const tessera_context& context) {
  const int64_t tokens = engine->shape.keys.tokens, drafts = engine->shape.drafts;
  const size_t requests = engine->accepted.size();
  const auto done = [&] {
    return std::all_of(engine->accepted.begin(), engine->accepted.end(), [&](int64_t n) { return n == tokens; });
  };
  while (!done()) {
    std::vector<int64_t> rows(requests), real(requests);
    const bool packed = drafts == 0 || random.chance(2);
    const int64_t equal = 1 + random.below(std::max<int64_t>(drafts, 1));
    for (size_t b = 0; b < requests; ++b) {
      const int64_t left = tokens - engine->accepted[b];
      const int64_t wrong = random.below(drafts + 1);
      real[b] = packed ? random.below(std::min(left, most) + 1) : std::min(equal - std::min(wrong, equal), left);
      rows[b] = packed ? real[b] + wrong : equal;
    }
    engine->append(rows, real, packed, context);
    if (testing::Test::HasFatalFailure()) return;
  }
}

std::vector<EngineCase> engines() {
  std::vector<EngineCase> all;
  for (const int64_t page_size : {0, 1, 2, 3, 7, 64}) {
    for (const int64_t drafts : {0, 1, 3, 9}) {
      const bool odd = (page_size + drafts) % 2 != 0;
      all.push_back({.keys = {.requests = 3, .tokens = 61, .dim = 24, .rotary = 8, .round = odd, .gaps = odd},
                     .page_size = page_size,
                     .drafts = drafts,
                     .head_axis = page_size > 2,
                     .positions = drafts > 1});
    }
  }
  for (const int64_t block : {1, 2, 3, 5, 16}) {
    all.push_back({.keys = {.tokens = 70, .dim = 17, .block = block, .rotary = 6}, .page_size = 5, .drafts = 2});
    all.push_back({.keys = {.requests = 1, .tokens = 40, .dim = 8, .block = block, .rotary = 0}, .positions = true});
  }
  all.push_back({.keys = {.requests = 40, .tokens = 13, .dim = 8, .rotary = 8}, .page_size = 2, .drafts = 1});
  return all;
}

TEST(QsaAppend, BitsAreThoseOfTheWholeHoweverTokensCome) {
  Random random(11);
  uint64_t stream = 0;
  for (const EngineCase& c : engines()) {
    for (const tessera_dtype dtype : kFloats) {
      for (const tessera_context& context : contexts()) {
        SCOPED_TRACE(testing::PrintToString(c) + ", " + dtype_name(dtype));
        Engine engine(c, dtype, ++stream);
        feed(&engine, random, random.pick({1, 3, 8, 100}), context);
        engine.expect_blocks(context);
        if (HasFailure()) return;
      }
    }
  }
}

// A prompt that is many times as long as the ring, in one call, from where another one ended.
TEST(QsaAppend, PromptsLongerThanTheRing) {
  for (const tessera_context& context : contexts()) {
    for (const int64_t first : {0, 1, 3, 4, 842}) {
      const EngineCase c = {.keys = {.requests = 2, .tokens = 3003, .dim = 16, .rotary = 8}, .page_size = 196};
      Engine engine(c, TESSERA_BF16);
      engine.append({first, 0}, {first, 0}, true, context);
      engine.append({3003 - first, 3003}, {3003 - first, 3003}, true, context);
      engine.expect_blocks(context);
    }
  }
}

TEST(QsaAppend, RingHoldsTheLastTokens) {
  Engine engine({.keys = {.requests = 1, .tokens = 40}, .drafts = 4}, TESSERA_F32);  // capacity 7
  engine.append({5}, {5}, true, {});
  engine.append({30}, {30}, true, {});
  const auto slot = static_cast<int64_t>(engine.ring_slots.get(0));
  for (int64_t i = 0; i < engine.ring.elements(); ++i) {
    const int64_t row = i / 32;
    if (row / 7 != slot) {
      EXPECT_FALSE(engine.ring.written(i));
    } else {  // tokens 28 to 34
      EXPECT_EQ(engine.ring.bits(i), engine.keys.raw.bits((28 + row % 7) * 32 + i % 32)) << row % 7;
    }
  }
}

TEST(QsaAppend, CosinesOfTheCallerTurnAsCompressionDoes) {
  Engine engine({.keys = {.requests = 2, .tokens = 20, .rotary = 8}}, TESSERA_BF16);
  Keys& keys = engine.keys;
  Random random(2);
  keys.cos = TestTensor(TESSERA_F32, {2, 5, 4});
  keys.sin = TestTensor(TESSERA_F32, {2, 5, 4});
  keys.cos.fill_normal(random);
  keys.sin.fill_normal(random);
  for (const tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
    tessera_context context = {};
    context.backend = backend;
    const TestTensor lens = i32({2}, {0, 0}), later = i32({2}, {6, 6});
    AppendKeysArgs a = {keys.raw, {}, lens, keys.rule(), {}, keys.cos, keys.sin, engine.ring, {}, engine.cache, {}};
    a.raw_keys.shape[1] = 6;
    Engine::call(a, context);
    a.raw_keys = keys.raw;
    a.raw_keys.data = static_cast<char*>(a.raw_keys.data) + 6 * 32 * 2;
    a.raw_keys.shape[1] = 14;
    a.seq_lens = later;
    for (tessera_tensor* t : {&a.cos, &a.sin}) {  // block 1 and those after it
      t->data = static_cast<float*>(t->data) + 4;
      t->shape[1] = 3;
    }
    Engine::call(a, context);
    const std::vector<uint32_t> want = keys.compress(context).all_bits();
    for (int64_t i = 0; i < engine.cache.elements(); ++i) {
      if (i / 32 % 5 == 4) {  // past what cosines are given for
        EXPECT_FALSE(engine.cache.written(i));
      } else {
        EXPECT_EQ(engine.cache.bits(i), want[static_cast<size_t>(i)]) << i;
      }
    }
    engine.cache.clear();
    engine.ring.clear();
  }
}

// Requests, lengths, slots and pages that do not exist: the other requests keep their bits, and nothing else is written.
TEST(QsaAppend, HostileDataWriteNothing) {
  const EngineCase c = {.keys = {.requests = 4, .tokens = 30, .dim = 8, .rotary = 8}, .page_size = 2};
  const double hostile[] = {-1, INT_MIN, INT_MAX, 1000};
  for (const tessera_context& context : contexts()) {
    Engine clean(c, TESSERA_BF16);
    clean.append({3, 3, 3, 3}, {3, 3, 3, 3}, true, context);
    clean.append({12, 12, 12, 12}, {12, 12, 12, 12}, true, context);
    for (const double value : hostile) {
      Engine engine(c, TESSERA_BF16);
      engine.page_table.set(engine.page_table.view().shape[1] * 2 + 0, value);  // blocks 0 and 1 of request 2
      engine.append({3, 3, 3, 3}, {3, 3, 3, 3}, true, context);
      engine.ring_slots.set(1, value);  // block 0 of request 1 began in the ring
      engine.append({12, 12, 12, 12}, {12, 12, 12, 12}, true, context);
      for (int64_t g = 0; g < 3; ++g) {
        EXPECT_TRUE(engine.block(0, g) == clean.block(0, g) && engine.block(3, g) == clean.block(3, g));
        EXPECT_EQ(engine.block(1, g) == clean.block(1, g), g > 0);
        EXPECT_EQ(engine.block(2, g) == clean.block(2, g), g == 2);
      }
      int64_t written = 0;
      for (int64_t i = 0; i < engine.cache.elements(); ++i) written += engine.cache.written(i) ? 1 : 0;
      EXPECT_EQ(written, 8 * (3 + 2 + 1 + 3)) << value;
    }
  }
}

TEST(QsaAppend, HostileLengthsAndRows) {
  const EngineCase c = {.keys = {.requests = 3, .tokens = 32, .dim = 8, .rotary = 8}, .page_size = 3};
  for (const tessera_context& context : contexts()) {
    Engine engine(c, TESSERA_F32);
    TestTensor raw(TESSERA_F32, {20, 8});
    raw.fill(1);
    const std::vector<double> rows[] = {{0, 30, 30, 30}, {-1, 4, 8, 12}, {8, 4, 2, 1}, {INT_MIN, INT_MAX, 3, 2}};
    for (const std::vector<double>& cu_values : rows) {
      const TestTensor cu = i32({4}, cu_values), lens = i32({3}, {0, INT_MAX, INT_MIN});
      AppendKeysArgs a = {raw,
                          cu,
                          lens,
                          engine.keys.rule(),
                          {},
                          {},
                          {},
                          engine.ring,
                          engine.ring_slots,
                          engine.cache,
                          engine.page_table};
      Engine::call(a, context);
    }
    // Lengths beyond the cache write to the ring alone; a negative one is 0.
    engine.cache.clear();
    const TestTensor cu = i32({4}, {0, 4, 12, 20}), lens = i32({3}, {INT_MAX, INT_MAX - 3, INT_MIN});
    AppendKeysArgs a = {
        raw, cu, lens, engine.keys.rule(), {}, {}, {}, engine.ring, engine.ring_slots, engine.cache, engine.page_table};
    Engine::call(a, context);
    for (int64_t d = 0; d < 8; ++d) EXPECT_TRUE(engine.cache.written(engine.at(2, 0) + d));
    int64_t written = 0;
    for (int64_t i = 0; i < engine.cache.elements(); ++i) written += engine.cache.written(i) ? 1 : 0;
    EXPECT_EQ(written, 2 * 8);
  }
}

TEST(QsaAppend, EmptyCallsWriteNothing) {
  for (const tessera_context& context : contexts()) {
    Engine engine({.keys = {.requests = 3}, .page_size = 2}, TESSERA_F16);
    engine.append({0, 0, 0}, {0, 0, 0}, true, context);
    engine.append({0, 0, 0}, {0, 0, 0}, false, context);
    EXPECT_TRUE(engine.cache.untouched() && engine.ring.untouched());
    Engine none({.keys = {.requests = 0}}, TESSERA_F16);
    none.append({}, {}, true, context);
    EXPECT_TRUE(none.ring.untouched());
  }
}

// Of two requests in one slot of the ring, each reads what was there before the call, and the later one's rows stay.
TEST(QsaAppend, SharedRingSlotIsDeterministic) {
  for (const tessera_context& context : contexts()) {
    Engine engine({.keys = {.requests = 20, .tokens = 8, .dim = 8, .rotary = 0}}, TESSERA_F32);
    engine.ring_slots.fill(3);
    engine.append(std::vector<int64_t>(20, 7), std::vector<int64_t>(20, 7), true, context);
    for (int64_t i = 0; i < 24; ++i) {
      EXPECT_EQ(engine.ring.bits(3 * 24 + i),
                engine.keys.raw.bits((19 * 8 + (i / 8 == 0 ? 6 : 3 + i / 8)) * 8 + i % 8));
    }
  }
}

}  // namespace
}  // namespace tessera::test
