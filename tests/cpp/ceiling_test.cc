// Ceilings are measured, so only their presence and the refusals are tested here, never a speed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::test {
namespace {

constexpr double kSeconds = 1e-3;

TEST(Ceiling, EveryAvailableVariantHasOne) {
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    const char* const name = tessera_variant_name(i);
    SCOPED_TRACE(name);
    const bool available = tessera_variant_available(i) != 0;
    double value = 0;
    for (tessera_ceiling_kind kind : {TESSERA_CEILING_F32_FMA, TESSERA_CEILING_STREAM}) {
      EXPECT_EQ(tessera_measure_ceiling(kind, name, 1, kSeconds, &value),
                available ? TESSERA_OK : TESSERA_NOT_IMPLEMENTED);
      EXPECT_EQ(value > 0, available);
    }
    value = 0;
    const bool dots = available && std::string(name).ends_with("bf16");
    EXPECT_EQ(tessera_measure_ceiling(TESSERA_CEILING_BF16_DOT, name, 1, kSeconds, &value),
              dots ? TESSERA_OK : TESSERA_NOT_IMPLEMENTED);
    EXPECT_EQ(value > 0, dots);
  }
}

TEST(Ceiling, RunsOnAllThreadsOfThePool) {
  ASSERT_EQ(tessera_set_num_threads(3), TESSERA_OK);
  double value = 0;
  EXPECT_EQ(tessera_measure_ceiling(TESSERA_CEILING_F32_FMA, nullptr, 3, kSeconds, &value), TESSERA_OK);
  EXPECT_GT(value, 0);
  EXPECT_EQ(tessera_measure_ceiling(TESSERA_CEILING_F32_FMA, nullptr, 4, kSeconds, &value), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_set_num_threads(0), TESSERA_OK);
}

TEST(Ceiling, GatherReadsAnyPieces) {
  const std::vector<float> memory(5 * 32, 1.0f);
  std::vector<const void*> pieces;
  for (int i : {3, 0, 4, 2, 1}) pieces.push_back(memory.data() + i * 32);
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    const char* const name = tessera_variant_name(i);
    SCOPED_TRACE(name);
    const bool available = tessera_variant_available(i) != 0;
    for (int64_t count : {1, 5}) {
      double value = 0;
      EXPECT_EQ(tessera_measure_gather(pieces.data(), count, 128, name, 1, kSeconds, &value),
                available ? TESSERA_OK : TESSERA_NOT_IMPLEMENTED);
      EXPECT_EQ(value > 0, available);
    }
  }
  double value = 0;
  const auto refused = [&](const void* const* from, int64_t count, int64_t bytes) {
    EXPECT_EQ(tessera_measure_gather(from, count, bytes, nullptr, 1, kSeconds, &value), TESSERA_INVALID_ARGUMENT);
    return std::string(tessera_last_error());
  };
  EXPECT_NE(refused(nullptr, 1, 64).find("measure_gather: pieces is empty"), std::string::npos);
  EXPECT_NE(refused(pieces.data(), 0, 64).find("pieces is empty"), std::string::npos);
  EXPECT_NE(refused(pieces.data(), 5, 96).find("bytes is 96"), std::string::npos);
  pieces[2] = nullptr;
  EXPECT_NE(refused(pieces.data(), 5, 64).find("pieces[2]"), std::string::npos);
}

TEST(Ceiling, RefusesByName) {
  double value = 0;
  const auto refused = [&](tessera_ceiling_kind kind, const char* variant, int32_t threads, double seconds) {
    EXPECT_EQ(tessera_measure_ceiling(kind, variant, threads, seconds, &value), TESSERA_INVALID_ARGUMENT);
    return std::string(tessera_last_error());
  };
  EXPECT_NE(refused(static_cast<tessera_ceiling_kind>(9), nullptr, 1, kSeconds).find("kind is 9"), std::string::npos);
  EXPECT_NE(refused(TESSERA_CEILING_F32_FMA, "none", 1, kSeconds).find("variant is \"none\""), std::string::npos);
  EXPECT_NE(refused(TESSERA_CEILING_F32_FMA, nullptr, 0, kSeconds).find("num_threads is 0"), std::string::npos);
  EXPECT_NE(refused(TESSERA_CEILING_F32_FMA, nullptr, 1, -1).find("seconds is -1"), std::string::npos);
}

}  // namespace
}  // namespace tessera::test
