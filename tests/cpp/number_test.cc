// Conversions of bf16 and f16: all 65,536 patterns to f32, and f32 back around every value and tie.
#include "core/number.h"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/view.h"

namespace tessera {
namespace {

template <class T>
struct Exponent;
template <>
struct Exponent<bf16> {
  static constexpr int kBits = 8;
};
template <>
struct Exponent<f16> {
  static constexpr int kBits = 5;
};

template <class T>
class Number : public testing::Test {
 protected:
  static double decode(uint32_t bits) { return reference::decode16(static_cast<uint16_t>(bits), Exponent<T>::kBits); }
  static uint16_t encode(float x) { return reference::encode16(x, Exponent<T>::kBits); }
};
using Types = testing::Types<bf16, f16>;
TYPED_TEST_SUITE(Number, Types);

TYPED_TEST(Number, EveryPatternToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const TypeParam x{static_cast<uint16_t>(bits)};
    const float value = to_float(x);
    const double want = this->decode(bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(to_float(from_float<TypeParam>(value)))) << bits;
    } else {
      ASSERT_EQ(value, want) << bits;
      ASSERT_EQ(from_float<TypeParam>(value).bits, bits);
    }
  }
}

// The value itself, the tie between it and the next, and the floats on both sides of each.
TYPED_TEST(Number, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0xffff; ++bits) {
    const double low = this->decode(bits), high = this->decode(bits + 1);
    if (!std::isfinite(low) || std::isnan(high)) continue;
    // Above the largest finite number the tie is where the next exponent's first number would be halved.
    const double next = std::isinf(high) ? 2 * low - this->decode(bits - 1) : high;
    for (const float at : {static_cast<float>(low), static_cast<float>(0.5 * (low + next))}) {
      for (const float x : {at, std::nextafter(at, -INFINITY), std::nextafter(at, INFINITY)}) {
        ASSERT_EQ(from_float<TypeParam>(x).bits, this->encode(x)) << x;
      }
    }
  }
}

TYPED_TEST(Number, ExtremesOfFloat) {
  for (const uint32_t pattern : {0u, 1u, 0x7fffffu, 0x800000u, 0x7f7fffffu, 0x7f800000u}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float x = bits_float(sign | pattern);
      EXPECT_EQ(from_float<TypeParam>(x).bits, this->encode(x)) << x;
    }
  }
}

TYPED_TEST(Number, NanStaysNanWhateverItsPayload) {
  for (const uint32_t pattern : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(to_float(from_float<TypeParam>(bits_float(pattern))))) << std::hex << pattern;
  }
}

}  // namespace
}  // namespace tessera
