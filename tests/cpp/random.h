// Reproducible random numbers. TESSERA_TEST_SEED sets the seed; a failing test prints it.
#ifndef TESSERA_TESTS_RANDOM_H_
#define TESSERA_TESTS_RANDOM_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace tessera::test {

inline uint64_t seed() {
  static const uint64_t value = [] {
    const char* text = std::getenv("TESSERA_TEST_SEED");
    return text == nullptr ? uint64_t{1} : std::strtoull(text, nullptr, 10);
  }();
  return value;
}

// splitmix64.
class Random {
 public:
  // Streams with different numbers are independent.
  explicit Random(uint64_t stream) : state_(seed() * 0x9e3779b97f4a7c15u + stream * 0xd1342543de82ef95u) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, n).
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  bool chance(int64_t one_in) { return below(one_in) == 0; }
  template <class T, size_t n>
  const T& pick(const T (&items)[n]) {
    return items[below(n)];
  }
  // Mean 0, variance 1, nearly normal: a sum of four uniform 16-bit numbers.
  float normal() {
    const uint64_t bits = next();
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(bits >> (16 * i) & 0xffff);
    return static_cast<float>(sum - 2 * 0xffff) * (1.7320508f / 65536);
  }

 private:
  uint64_t state_;
};

class SeedPrinter : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) std::printf("TESSERA_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed()));
  }
};
inline const bool seed_printer_installed = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new SeedPrinter);
  return true;
}();

}  // namespace tessera::test

#endif  // TESSERA_TESTS_RANDOM_H_
