#include "ops/ceiling/ceiling.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "cpu/features.h"
#include "ops/choose.h"
#include "runtime/executor.h"
#include "runtime/trace.h"

namespace tessera::ceiling {

extern const Kernel scalar_loops;
#if defined(__x86_64__)
extern const Kernel avx2_loops, avx512_loops, avx512bf16_loops;
#endif

namespace {

// As for operators; bf16 stands for pair dots, f32 for FMAs and reads.
constexpr KernelVariant<Kernel> kVariants[] = {
#if defined(__x86_64__)
    {"avx512bf16", &avx512bf16_loops, nullptr, &avx512_loops},
    {"avx512", nullptr, nullptr, &avx512_loops},
    {"avx2", nullptr, nullptr, &avx2_loops},
#endif
    {"scalar", nullptr, nullptr, &scalar_loops},
};

// Starts `work(task)` on every thread and gives amounts per nanosecond. Each task goes on until the time is over, so a
// thread that comes late, or not at all, lowers the figure as it would lower an operator's.
template <class Work>
double rate(const Executor& executor, double seconds, const Work& work) {
  const int threads = executor.workers();
  executor.parallel_for(
      threads, [](int64_t, int) {}, "start");  // threads that do not run yet
  std::atomic<int64_t> amount{0};
  const int64_t begin = now_ns();
  const int64_t end = begin + static_cast<int64_t>(seconds * 1e9);
  executor.parallel_for(
      threads, [&](int64_t task, int) { amount += work(task, end); }, "ceiling");
  return static_cast<double>(amount.load()) / static_cast<double>(now_ns() - begin);
}

double multiply_rate(const Kernel& kernel, const Executor& executor, double seconds) {
  constexpr int64_t kSteps = 4096;  // 10 to 50 us between two looks at the clock
  return rate(executor, seconds, [&](int64_t, int64_t end) {
    alignas(64) float state[kMaxAccumulators * kMaxLanes] = {};
    int64_t flops = 0;
    do {
      kernel.multiply(state, kSteps);
      flops += kSteps * kernel.flops;
    } while (now_ns() < end);
    return flops;
  });
}

// More than all the last-level caches that the threads could have to themselves.
size_t stream_bytes(int threads) {
  constexpr size_t kLeast = size_t{256} << 20, kHugePage = size_t{2} << 20;
  const size_t bytes = kLeast + static_cast<size_t>(threads) * cache_sizes().l3;
  return bytes / kHugePage * kHugePage;
}

double read_rate(const Kernel& kernel, const Executor& executor, double seconds) {
  constexpr int64_t kPiece = 64 * kReadFloats;  // 32 KiB
  const int threads = executor.workers();
  const size_t bytes = stream_bytes(threads);
  const std::unique_ptr<float, decltype(&std::free)> memory(
      static_cast<float*>(std::aligned_alloc(size_t{2} << 20, bytes)), &std::free);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  madvise(memory.get(), bytes, MADV_HUGEPAGE);  // a wish: without it TLB misses are measured too
#endif
  const int64_t pieces = static_cast<int64_t>(bytes / sizeof(float)) / kPiece / threads;  // of one thread
  executor.parallel_for(
      threads,
      [&](int64_t task, int) {
        std::memset(memory.get() + task * pieces * kPiece, 0, static_cast<size_t>(pieces * kPiece) * sizeof(float));
      },
      "touch");
  std::atomic<int> odd{0};  // makes the sums needed
  const double result = rate(executor, seconds, [&](int64_t task, int64_t end) {
    int64_t read = 0;
    do {
      const float* const piece = memory.get() + (task * pieces + read % pieces) * kPiece;
      if (kernel.read(piece, kPiece) != 0) ++odd;
      ++read;
    } while (now_ns() < end);
    return read * kPiece * static_cast<int64_t>(sizeof(float));
  });
  return odd == 0 ? result : 0;
}

}  // namespace

Status measure(tessera_ceiling_kind kind, const char* variant, int32_t num_threads, double seconds, double* value) {
  constexpr double kMostSeconds = 60;
  if (kind != TESSERA_CEILING_F32_FMA && kind != TESSERA_CEILING_BF16_DOT && kind != TESSERA_CEILING_STREAM) {
    return invalid("kind is " + std::to_string(kind) + "; expected a tessera_ceiling_kind");
  }
  if (value == nullptr) return invalid("value is NULL");
  if (!(seconds > 0 && seconds <= kMostSeconds)) {
    return invalid("seconds is " + std::to_string(seconds) + "; expected above 0, up to 60");
  }
  const tessera_executor threads = {
      TESSERA_EXECUTOR_THREADS, num_threads < 1 ? 1 : num_threads, 0, 0, nullptr, nullptr};
  const Executor executor(threads);
  if (num_threads != executor.workers()) {
    return invalid("num_threads is " + std::to_string(num_threads) + "; expected 1 to " +
                   std::to_string(tessera_get_num_threads()) + ", the size of the pool");
  }
  if (variant != nullptr && find_variant(variant) == nullptr) {
    return invalid("variant is \"" + std::string(variant) + "\"; expected " + variant_names());
  }
  const tessera_dtype dtype = kind == TESSERA_CEILING_BF16_DOT ? TESSERA_BF16 : TESSERA_F32;
  Status complaint;
  const KernelVariant<Kernel>* chosen = choose_variant<Kernel>(kVariants, variant, dtype, &complaint);
  if (chosen == nullptr) return complaint;
  const Kernel& kernel = *chosen->kernel(dtype);
  *value =
      kind == TESSERA_CEILING_STREAM ? read_rate(kernel, executor, seconds) : multiply_rate(kernel, executor, seconds);
  return {};
}

}  // namespace tessera::ceiling
