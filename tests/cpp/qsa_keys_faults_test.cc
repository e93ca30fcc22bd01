// Small calls on which other implementations of QSA have been wrong in writing compressed keys; each name says what went
// wrong, by number.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "by_hand.h"
#include "lazy.h"
#include "qsa_append.h"

namespace tessera::test {
namespace {

class QsaKeysFaults : public testing::TestWithParam<std::string> {
 protected:
  tessera_context context() const {
    tessera_context c = {};
    c.variant = GetParam().c_str();
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Qsa, QsaKeysFaults, testing::ValuesIn(key_variants()),
                         [](const auto& test) { return test.param; });

// Bits of block g of request b of compressed keys.
std::vector<uint32_t> block_of(const TestTensor& keys, int64_t b, int64_t g) {
  const std::vector<uint32_t> all = keys.all_bits();
  const int64_t blocks = keys.view().shape[1], dim = keys.view().shape[2];
  const auto first = all.begin() + (b * blocks + g) * dim;
  return {first, first + dim};
}

TEST(QsaExpandFaults, F08_NothingToSelect) {
  const TestTensor ids = i32({4, 2}, std::vector<double>(8, -1)), positions = i32({4}, {0, 1, 2, 3});
  const TestTensor tokens(TESSERA_I32, {4, 11});
  const tessera_qsa_expand_blocks_args a = {ids, positions, 4, tokens};
  ASSERT_EQ(tessera_qsa_expand_blocks(&a, nullptr), TESSERA_OK) << tessera_last_error();
  for (int64_t i = 0; i < tokens.elements(); ++i) {
    const int64_t row = i / 11, place = i % 11;
    EXPECT_EQ(tokens.get(i), row < 3 && place <= row ? place : -1)
        << row << ", " << place;  // row 3 completes its block
  }
}

// Pages of 1,077,120 and of 65,536 bytes, so far apart that 32 bits count neither bytes nor elements.
TEST_P(QsaKeysFaults, F14_PageTimesStrideWraps) {
  struct Cache {
    int64_t stride, pages;  // elements
    std::vector<double> ids;
  };
  const Keys call({.requests = 1, .tokens = 64}, TESSERA_BF16);
  const std::vector<double> want = call.compress(context()).values().values();
  for (const Cache& c : {Cache{538560, 7025, {1994, 7024}}, Cache{32768, 65537, {32768, 65536}}}) {
    const Lazy memory(static_cast<size_t>(c.stride * c.pages * 2));
    if (memory.data == MAP_FAILED) GTEST_SKIP() << "8 GiB of address space are not to be had";
    const TestTensor ring(TESSERA_BF16, {1, 3, 32}), lens = i32({1}, {0}), table = i32({1, 2}, c.ids);
    const tessera_tensor cache = {memory.data, TESSERA_BF16, 3, {c.pages, 8, 32}, {c.stride, 32, 1}};
    const tessera_qsa_append_keys_args a = {call.raw, {}, lens, call.rule(), {}, {}, {}, ring, {}, cache, table};
    const tessera_context with = context();
    ASSERT_EQ(tessera_qsa_append_keys(&a, &with), TESSERA_OK) << tessera_last_error();
    for (int64_t i = 0; i < 16 * 32; ++i) {
      const auto page = static_cast<int64_t>(c.ids[static_cast<size_t>(i / 256)]);
      EXPECT_EQ(reference::View(cache).get(page * 256 + i % 256), want[static_cast<size_t>(i)]) << i;
    }
  }
}

// Requests, tokens and blocks that begin 2^31 elements apart.
TEST_P(QsaKeysFaults, F16_RowOffsetsOverflow) {
  const int64_t apart = int64_t{1} << 31;
  const Lazy raw(static_cast<size_t>(2 * apart) * 2 + 4096), out(raw.bytes);
  if (raw.data == MAP_FAILED || out.data == MAP_FAILED) GTEST_SKIP() << "16 GiB of address space are not to be had";
  const Keys call({.requests = 3, .tokens = 8}, TESSERA_BF16);
  tessera_qsa_compress_keys_args a = call.args(call.out());
  a.raw_keys = {raw.data, TESSERA_BF16, 3, {3, 8, 32}, {apart, 32, 1}};
  a.out = {out.data, TESSERA_BF16, 3, {3, 2, 32}, {apart, 32, 1}};
  reference::View(a.raw_keys).set_values(call.raw.values().values());
  const tessera_context with = context();
  ASSERT_EQ(tessera_qsa_compress_keys(&a, &with), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(reference::View(a.out).values(), call.compress(with).values().values());
}

TEST(QsaExpandFaults, F16_RowOffsetsOverflow) {
  const int64_t apart = int64_t{1} << 31;
  const Lazy blocks(static_cast<size_t>(2 * apart) * 4 + 4096), tokens(blocks.bytes);
  if (blocks.data == MAP_FAILED || tokens.data == MAP_FAILED)
    GTEST_SKIP() << "32 GiB of address space are not to be had";
  const TestTensor positions = i32({3}, {9, 13, 30});
  const tessera_tensor ids = {blocks.data, TESSERA_I32, 2, {3, 1}, {apart, 1}};
  const tessera_tensor to = {tokens.data, TESSERA_I32, 2, {3, 7}, {apart, 1}};
  reference::View(ids).set_values({0, 2, 1});
  const tessera_qsa_expand_blocks_args a = {ids, positions, 4, to};
  ASSERT_EQ(tessera_qsa_expand_blocks(&a, nullptr), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(reference::View(to).values(),
            (std::vector<double>{0, 1, 2, 3, 8, 9, -1, 8, 9, 10, 11, 12, 13, -1, 4, 5, 6, 7, 28, 29, 30}));
}

TEST_P(QsaKeysFaults, F19_LastRequestOverwritesTheOthers) {
  const EngineCase c = {.keys = {.requests = 2, .tokens = 8, .dim = 128, .rotary = 64}, .page_size = 2};
  const Engine model(c, TESSERA_BF16);
  const TestTensor want = model.keys.compress(context());
  EXPECT_NE(block_of(want, 0, 0), block_of(want, 1, 0));
  for (const bool swapped : {false, true}) {
    Engine engine(c, TESSERA_BF16);
    if (swapped) {  // of the rows and of all that goes with them
      for (int64_t i = 0; i < 8 * 128; ++i) {
        const double first = engine.keys.raw.get(i);
        engine.keys.raw.set(i, engine.keys.raw.get(8 * 128 + i));
        engine.keys.raw.set(8 * 128 + i, first);
      }
    }
    for (int i = 0; i < 8; ++i) engine.append({1, 1}, {1, 1}, i % 2 == 0, context());
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t g = 0; g < 2; ++g) {
        EXPECT_EQ(engine.block(b, g), block_of(want, swapped ? 1 - b : b, g)) << b << ", " << g;
      }
    }
  }
}

TEST_P(QsaKeysFaults, F20_ImageTokensCollapseIntoOneBlock) {
  Keys call({.requests = 1, .tokens = 9}, TESSERA_F32);
  const TestTensor plain = call.compress(context());
  call.positions = i32({1, 9}, {0, 1, 1, 1, 1, 1, 1, 1, 2});
  const TestTensor got = call.compress(context());
  EXPECT_EQ(got.view().shape[1], 2);  // of the order of tokens
  EXPECT_TRUE(keys_within(got, call));
  EXPECT_EQ(block_of(got, 0, 0), block_of(plain, 0, 0));  // its first token is at 0
  EXPECT_NE(block_of(got, 0, 1), block_of(plain, 0, 1));
  Keys moved = call;
  moved.positions = i32({1, 9}, {0, 5, 6, 7, 1, 8, 9, 10, 11});  // the same first tokens
  EXPECT_TRUE(moved.compress(context()).all_bits() == got.all_bits());
}

TEST_P(QsaKeysFaults, F22_LeftPaddingShiftsTheRotation) {
  Keys padded({.requests = 1, .tokens = 8, .dim = 128, .rotary = 64}, TESSERA_BF16);
  Keys plain = padded;
  plain.shape.tokens = 4;
  plain.raw = TestTensor(TESSERA_BF16, {1, 4, 128});
  for (int64_t i = 0; i < 4 * 128; ++i) plain.raw.set(i, padded.raw.get(4 * 128 + i));
  for (int64_t i = 0; i < 4 * 128; ++i) padded.raw.set(i, NAN);
  padded.positions = i32({1, 8}, {0, 0, 0, 0, 0, 1, 2, 3});
  const std::vector<uint32_t> want = block_of(plain.compress(context()), 0, 0);
  EXPECT_EQ(block_of(padded.compress(context()), 0, 1), want);
  // Padding that is no whole block: a view that begins with the first token.
  Keys view = padded;
  view.shape.tokens = 4;
  view.positions = TestTensor();
  const TestTensor out = view.out();
  tessera_qsa_compress_keys_args a = view.args(out);
  a.raw_keys.data = static_cast<char*>(a.raw_keys.data) + 4 * 128 * 2;
  a.raw_keys.shape[1] = 4;
  const tessera_context c = context();
  ASSERT_EQ(tessera_qsa_compress_keys(&a, &c), TESSERA_OK) << tessera_last_error();
  EXPECT_EQ(block_of(out, 0, 0), want);
}

TEST_P(QsaKeysFaults, F23_PrefixThatIsNoMultipleOfTheBlock) {
  for (const bool cached : {true, false}) {
    Engine engine({.keys = {.requests = 1, .tokens = 848, .dim = 16}, .page_size = 64}, TESSERA_BF16);
    const TestTensor want = engine.keys.compress(context());
    if (cached) {
      engine.append({842}, {842}, true, context());
    } else {  // the cache came from elsewhere: the two tokens of its open block are written again
      engine.accepted[0] = 840;
      engine.append({2}, {2}, true, context());
    }
    engine.append({6}, {6}, true, context());
    for (const int64_t g : {210, 211}) EXPECT_EQ(engine.block(0, g), block_of(want, 0, g)) << g;
  }
}

TEST_P(QsaKeysFaults, F25_GarbageFromTheFirstTokenAfterPageOne) {
  for (int64_t page : {2, 4, 6, 8, 16}) {
    for (int64_t tokens : {4 * page - 1, 4 * page, 4 * page + 1, 4 * page + 4}) {
      Engine engine({.keys = {.requests = 1, .tokens = tokens}, .page_size = page}, TESSERA_BF16);
      engine.append({tokens - 1}, {tokens - 1}, true, context());
      engine.append({1}, {1}, true, context());
      engine.expect_blocks(context());
    }
  }
}

TEST_P(QsaKeysFaults, F28_EmptyBatches) {
  Engine engine({.keys = {.requests = 3, .tokens = 40}, .page_size = 4}, TESSERA_BF16);
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{0, 0, 0}, {3, 0, 5}, {0, 8, 0}, {37, 32, 35}}) {
    engine.append(rows, rows, true, context());
  }
  engine.expect_blocks(context());
}

TEST_P(QsaKeysFaults, F31_RejectedDraftsEnterTheNextBlock) {
  for (const int64_t accepted : {0, 1, 2, 3}) {
    for (const int64_t drafts : {4, 9}) {  // fewer than a block and more
      Engine engine({.keys = {.requests = 1, .tokens = 16}, .drafts = drafts}, TESSERA_F16);
      engine.append({5}, {5}, true, context());
      engine.append({drafts}, {accepted}, true, context());
      while (engine.accepted[0] < 16) engine.append({1}, {1}, true, context());
      engine.expect_blocks(context());
    }
  }
}

TEST_P(QsaKeysFaults, F32_CompressingTwiceFoldsTwice) {
  const Keys call({.round = true}, TESSERA_BF16);
  const std::vector<uint32_t> raw = call.raw.all_bits(), once = call.compress(context()).all_bits();
  EXPECT_TRUE(call.compress(context()).all_bits() == once);
  EXPECT_TRUE(call.raw.all_bits() == raw);
  // Appending the same tokens again, of which the ring holds those before them.
  Engine engine({.keys = {.requests = 1, .tokens = 8}, .drafts = 3}, TESSERA_BF16);
  engine.append({5}, {5}, true, context());
  engine.append({3}, {3}, true, context());
  const std::vector<uint32_t> cache = engine.cache.all_bits(), ring = engine.ring.all_bits();
  engine.accepted[0] = 5;
  engine.append({3}, {3}, true, context());
  EXPECT_TRUE(engine.cache.all_bits() == cache && engine.ring.all_bits() == ring);
}

TEST_P(QsaKeysFaults, F34_NoWriteWhileASelectionIsReused) {
  Engine engine({.keys = {.requests = 1, .tokens = 12}, .page_size = 1, .drafts = 4}, TESSERA_BF16);
  engine.append({8}, {8}, true, context());
  for (int i = 0; i < 4; ++i) engine.append({1}, {1}, false, context());  // each of which only appends
  EXPECT_EQ(engine.block(0, 2), block_of(engine.keys.compress(context()), 0, 2));
}

TEST_P(QsaKeysFaults, F40_PagesInAPoolOfAllLayers) {
  const EngineCase c = {.keys = {.requests = 2, .tokens = 50, .dim = 16}, .page_size = 4};
  Engine tight(c, TESSERA_BF16), pool(c, TESSERA_BF16);
  const Shape shape(pool.cache.view().shape, pool.cache.view().shape + 3);
  pool.cache = TestTensor(TESSERA_BF16, shape, {4 * 16 + 48, 16, 1});
  for (Engine* engine : {&tight, &pool}) {
    engine->append({7, 30}, {7, 30}, true, context());
    engine->append({43, 20}, {43, 20}, true, context());
    engine->expect_blocks(context());
  }
  EXPECT_TRUE(pool.cache.all_bits() == tight.cache.all_bits());
}

}  // namespace
}  // namespace tessera::test
