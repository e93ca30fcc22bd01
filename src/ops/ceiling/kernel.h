// The loops that bound every kernel: dot steps on registers alone, a sequential read, and a read of scattered pieces.
//
// A dot step has a latency of 4 to 6 cycles and two of them start in each, so 8 to 12 chains must be in flight before
// the multipliers are always busy; fewer would measure the latency and call it a ceiling. With 32 registers there are
// 24 accumulators; with 16 there are 14, which together with the two operands are all the registers there are: one more
// would go through memory. Nothing is loaded or stored inside the loop: GCC 12 and Clang 14 keep to that for every
// vector ISA (and an `asm` barrier in the loop would make GCC store each accumulator).
#ifndef TESSERA_OPS_CEILING_KERNEL_H_
#define TESSERA_OPS_CEILING_KERNEL_H_

#include "core/number.h"
#include "ops/ceiling/ceiling.h"

namespace tessera::ceiling {

template <class Isa, int kAccumulators>
struct Ceiling {
  using vec = typename Isa::vec;
  using unit = typename Isa::unit;
  static constexpr int kLanes = Isa::kLanes;
  static_assert(kAccumulators <= kMaxAccumulators && kLanes <= kMaxLanes);

  // The accumulators start from memory, else the compiler would see that all are equal and keep one.
  static void multiply(float* state, int64_t steps) {
    vec acc[kAccumulators];
#pragma GCC unroll 32
    for (int i = 0; i < kAccumulators; ++i) acc[i] = Isa::load(state + i * kLanes);
    const unit half = constant(0x3f00);
    const unit one = constant(0x3f80);
    for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 32
      for (int i = 0; i < kAccumulators; ++i) {
        if constexpr (Isa::kPair == 1) {
          // 1 + acc/2, not acc + 1/2: where multiply and add are two instructions, a constant product would leave the
          // loop.
          acc[i] = Isa::dot(one, acc[i], half);
        } else {
          acc[i] = Isa::dot(acc[i], half, one);
        }
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < kAccumulators; ++i) Isa::store(state + i * kLanes, acc[i]);
  }

  static float read(const float* p, int64_t n) {
    constexpr int kSums = 8;
    vec sum[kSums];
    for (int i = 0; i < kSums; ++i) sum[i] = Isa::set1(0.0f);
    for (const float* end = p + n; p < end; p += kSums * kLanes) {
#pragma GCC unroll 8
      for (int i = 0; i < kSums; ++i) sum[i] = Isa::add(sum[i], Isa::load(p + i * kLanes));
    }
    for (int i = 1; i < kSums; ++i) sum[0] = Isa::add(sum[0], sum[i]);
    return Isa::reduce_add(sum[0]);
  }

  // The maximum, since no value makes it slow; a sum of bits that are no floats may be one of denormal numbers.
  static float gather(const char* const* pieces, const Ahead& ahead, int64_t bytes) {
    constexpr int kVecs = kLine / 4 / kLanes;
    vec most[kStreams];
    for (int i = 0; i < kStreams; ++i) most[i] = Isa::set1(0.0f);
    for (int64_t at = 0; at < bytes; at += kLine) {
      const int64_t later = at + ahead.bytes;
      const char* const* const soon = later < bytes ? ahead.here : ahead.next;
      const int64_t where = later < bytes ? later : later - bytes;
#pragma GCC unroll 4
      for (int i = 0; i < kStreams; ++i) {
        if (soon != nullptr) Isa::prefetch(soon[i] + where);
        const float* const line = reinterpret_cast<const float*>(pieces[i] + at);
#pragma GCC unroll 4
        for (int j = 0; j < kVecs; ++j) most[i] = Isa::max(most[i], Isa::load(line + j * kLanes));
      }
    }
    for (int i = 1; i < kStreams; ++i) most[0] = Isa::max(most[0], most[i]);
    return Isa::reduce_max(most[0]);
  }

  static constexpr Kernel kernel() { return {multiply, read, gather, 2 * kAccumulators * kLanes * Isa::kPair}; }

 private:
  // A number that bf16 holds, in every operand. Read from memory: GCC 12 for Arm makes f16 of bf16 vectors that it knows.
  static unit constant(uint16_t bits) {
    const volatile uint16_t unknown = bits;
    bf16 x[kMaxLanes * 2];
    for (bf16& element : x) element.bits = unknown;
    return Isa::units(x, kLanes * Isa::kPair);
  }
};

}  // namespace tessera::ceiling

#endif  // TESSERA_OPS_CEILING_KERNEL_H_
