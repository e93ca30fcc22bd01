// Masked means absent: NaN and infinity in keys and values that a row does not see change no bit of it, and a NaN that
// it does see reaches that row.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention.h"

namespace tessera::test {
namespace {

using cases::BlockAttn;

const BlockAttn kCalls[] = {
    {.requests = 2, .queries = 40, .keys = 300, .kv_heads = 2, .group = 3, .block = 32, .block_q = 7, .per_head = true},
    {.queries = 100, .keys = 100, .group = 2, .block = 64, .block_q = 64, .ids = cases::Ids::kAll},
    {.queries = 30, .keys = 200, .group = 5, .dim = 40, .dim_v = 24, .block = 33, .block_q = 1, .width = 3},
    {.queries = 2, .keys = 4300, .group = 4, .block = 128, .block_q = 1, .width = 30},
    {.queries = 20, .keys = 150, .block = 128, .block_q = 20, .causal = false, .layout = cases::Layout::kStrided},
    {.queries = 5, .keys = 64, .group = 1, .dim = 8, .dim_v = 8, .block = 3, .block_q = 2, .width = 3},
};
const double kPoisons[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity()};

class BlockAttnPoison : public testing::TestWithParam<std::string> {
 protected:
  tessera_context context() const { return with_variant(GetParam().c_str()); }
  std::vector<tessera_dtype> dtypes() const {
    std::vector<tessera_dtype> all;
    for (tessera_dtype dtype : kFloats) {
      if (takes(GetParam(), dtype)) all.push_back(dtype);
    }
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(BlockAttn, BlockAttnPoison, testing::ValuesIn(variants()),
                         [](const auto& test) { return test.param; });

void fill_row(TestTensor& t, int64_t row, double value) {
  const int64_t dim = t.values().last_size();
  for (int64_t d = 0; d < dim; ++d) t.set(row * dim + d, value);
}

TEST_P(BlockAttnPoison, InUnusedKeysChangesNoBit) {
  for (const BlockAttn& c : kCalls) {
    for (tessera_dtype dtype : dtypes()) {
      SCOPED_TRACE(name(c) + " " + dtype_name(dtype));
      const Attention clean = make_attention(c, dtype);
      const Output want = clean.run(context());
      const State want_state = clean.run_state(context());
      for (double poison : kPoisons) {
        Attention dirty = clean;
        dirty.k = clean.k.clone();
        dirty.v = clean.v.clone();
        for (int64_t b = 0; b < c.requests; ++b) {
          for (int64_t head = 0; head < c.kv_heads; ++head) {
            for (int64_t key = 0; key < c.keys; ++key) {
              if (clean.used(b, head, key)) continue;
              fill_row(dirty.k, clean.key_row(b, head, key), poison);
              fill_row(dirty.v, clean.key_row(b, head, key), poison);
            }
          }
        }
        EXPECT_EQ(dirty.run(context()), want) << poison;
        EXPECT_EQ(dirty.run_state(context()), want_state) << poison;
      }
    }
  }
}

// Poison in one key that some rows see: those that do not see it keep their bits.
TEST_P(BlockAttnPoison, ReachesExactlyTheRowsThatSeeIt) {
  for (const BlockAttn& c : kCalls) {
    for (tessera_dtype dtype : dtypes()) {
      SCOPED_TRACE(name(c) + " " + dtype_name(dtype));
      const Attention clean = make_attention(c, dtype);
      const Output want = clean.run(context());
      Random random(5);
      for (int repeat = 0; repeat < 9; ++repeat) {
        const int64_t b = random.below(c.requests);
        const int64_t head = random.below(c.kv_heads);
        const int64_t key = repeat == 0 ? c.keys - 1 : random.below(c.keys);
        const int64_t row = clean.key_row(b, head, key);
        const int64_t feature = random.below(c.dim_v);
        const double poison = kPoisons[repeat % 3];
        const bool in_k = repeat % 2 == 0;
        SCOPED_TRACE(testing::Message() << poison << " in " << (in_k ? "k" : "v") << "[" << b << ", " << key << ", "
                                        << head << "], feature " << feature);
        Attention dirty = clean;
        if (in_k) {
          dirty.k = clean.k.clone();
          dirty.k.set(row * c.dim + random.below(c.dim), std::nan(""));
        } else {
          dirty.v = clean.v.clone();
          dirty.v.set(row * c.dim_v + feature, poison);
        }
        const Output got = dirty.run(context());
        for (int64_t r = 0; r < c.requests * c.queries * c.heads(); ++r) {
          const int64_t h = r % c.heads();
          const int64_t t = r / c.heads() % c.queries;
          const bool hit = r / c.heads() / c.queries == b && h / c.group == head && dirty.sees(b, head, t, key);
          if (!hit || !in_k) {
            ASSERT_EQ(got.lse.bits(r), want.lse.bits(r)) << "lse of query " << t << ", head " << h;
          } else {
            ASSERT_TRUE(std::isnan(got.lse.get(r))) << "lse of query " << t << ", head " << h;
          }
          for (int64_t d = 0; d < c.dim_v; ++d) {
            const double x = got.out.get(r * c.dim_v + d);
            if (hit && in_k) {
              ASSERT_TRUE(std::isnan(x)) << "query " << t << ", head " << h << ", feature " << d;
            } else if (hit && d == feature) {
              ASSERT_FALSE(std::isfinite(x)) << "query " << t << ", head " << h << ", feature " << d;
            } else {
              ASSERT_EQ(got.out.bits(r * c.dim_v + d), want.out.bits(r * c.dim_v + d))
                  << "query " << t << ", head " << h << ", feature " << d;
            }
          }
        }
      }
    }
  }
}

TEST_P(BlockAttnPoison, InAQueryStaysInItsRow) {
  for (const BlockAttn& c : kCalls) {
    for (tessera_dtype dtype : dtypes()) {
      SCOPED_TRACE(name(c) + " " + dtype_name(dtype));
      const Attention clean = make_attention(c, dtype);
      const Output want = clean.run(context());
      Random random(6);
      const int64_t bad = random.below(c.requests * c.queries * c.heads());
      Attention dirty = clean;
      dirty.q = clean.q.clone();
      dirty.q.set(bad * c.dim + random.below(c.dim), std::nan(""));
      const Output got = dirty.run(context());
      for (int64_t r = 0; r < c.requests * c.queries * c.heads(); ++r) {
        if (r == bad && !std::isinf(want.lse.get(r))) {
          EXPECT_TRUE(std::isnan(got.lse.get(r)));
          EXPECT_TRUE(std::isnan(got.out.get(r * c.dim_v)));
        } else {
          ASSERT_EQ(got.lse.bits(r), want.lse.bits(r)) << "row " << r;
          ASSERT_EQ(got.out.bits(r * c.dim_v), want.out.bits(r * c.dim_v)) << "row " << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
