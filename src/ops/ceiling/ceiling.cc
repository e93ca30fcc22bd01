#include "ops/ceiling/ceiling.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "cpu/features.h"
#include "ops/choose.h"
#include "ops/isas.h"
#include "ops/layout.h"
#include "runtime/executor.h"
#include "runtime/trace.h"

namespace tessera::ceiling {

#define TESSERA_PAIR_LOOPS(isa, wide) extern const Kernel isa##_loops;
#define TESSERA_LOOPS(isa) extern const Kernel isa##_loops;
TESSERA_ISAS(TESSERA_PAIR_LOOPS, TESSERA_LOOPS)

namespace {

// As for operators; bf16 stands for pair dots, f32 for FMAs and reads.
#define TESSERA_PAIR_ENTRY(isa, wide) {#isa, &isa##_loops, nullptr, &wide##_loops},
#define TESSERA_ENTRY(isa) {#isa, nullptr, nullptr, &isa##_loops},
constexpr KernelVariant<Kernel> kVariants[] = {TESSERA_ISAS(TESSERA_PAIR_ENTRY, TESSERA_ENTRY)};

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

// What the threads of a gather read, over and over: groups of kStreams pieces, a share of them each.
struct Groups {
  std::vector<const char*> pieces;
  int64_t share;
  int64_t bytes;

  const char* const* at(int64_t task, int64_t group) const {
    return pieces.data() + (task * share + group % share) * kStreams;
  }
};

int64_t read_groups(const Kernel& kernel, const Groups& g, int64_t task, int64_t distance, int64_t end, float* most) {
  const int64_t between_looks = std::max<int64_t>(1, (64 << 10) / (kStreams * g.bytes));
  const int64_t skipped = distance / g.bytes;
  int64_t n = 0;
  do {
    for (const int64_t stop = n + between_looks; n < stop; ++n) {
      Ahead ahead = {};
      if (distance > 0) ahead = {g.at(task, n + skipped), g.at(task, n + skipped + 1), distance % g.bytes};
      *most = std::max(*most, kernel.gather(g.at(task, n), ahead, g.bytes));
    }
  } while (now_ns() < end);
  return n * kStreams * g.bytes;
}

double gather_rate(const Kernel& kernel, const Executor& executor, double seconds, const char* const* pieces,
                   int64_t count, int64_t bytes) {
  constexpr int64_t kDistances[] = {0, 256, 1024, 4096};
  const int threads = executor.workers();
  Groups groups = {{}, ceil_div(ceil_div(count, kStreams), threads), bytes};
  groups.pieces.resize(static_cast<size_t>(threads * groups.share * kStreams));
  for (size_t i = 0; i < groups.pieces.size(); ++i) groups.pieces[i] = pieces[i % static_cast<size_t>(count)];
  std::atomic<float> most{0};  // makes the maxima needed
  double best = 0;
  for (int64_t distance : kDistances) {
    const auto work = [&](int64_t task, int64_t end) {
      float top = 0;
      const int64_t read = read_groups(kernel, groups, task, distance, end, &top);
      most = top;
      return read;
    };
    best = std::max(best, rate(executor, seconds / std::size(kDistances), work));
  }
  return best;
}

// Calls rate_of(kernel, executor) if the arguments are good.
template <class RateOf>
Status measure_by(tessera_dtype dtype, const char* variant, int32_t num_threads, double seconds, double* value,
                  const RateOf& rate_of) {
  constexpr double kMostSeconds = 60;
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
  Status complaint;
  const KernelVariant<Kernel>* chosen = choose_variant<Kernel>(kVariants, variant, dtype, &complaint);
  if (chosen != nullptr) *value = rate_of(*chosen->kernel(dtype), executor);
  return complaint;
}

}  // namespace

Status measure(tessera_ceiling_kind kind, const char* variant, int32_t num_threads, double seconds, double* value) {
  if (kind != TESSERA_CEILING_F32_FMA && kind != TESSERA_CEILING_BF16_DOT && kind != TESSERA_CEILING_STREAM) {
    return invalid("kind is " + std::to_string(kind) + "; expected a tessera_ceiling_kind");
  }
  const tessera_dtype dtype = kind == TESSERA_CEILING_BF16_DOT ? TESSERA_BF16 : TESSERA_F32;
  return measure_by(dtype, variant, num_threads, seconds, value, [&](const Kernel& kernel, const Executor& executor) {
    return kind == TESSERA_CEILING_STREAM ? read_rate(kernel, executor, seconds)
                                          : multiply_rate(kernel, executor, seconds);
  });
}

Status measure_gather(const void* const* pieces, int64_t count, int64_t bytes, const char* variant, int32_t num_threads,
                      double seconds, double* value) {
  if (pieces == nullptr || count < 1) return invalid("pieces is empty");
  if (bytes < kLine || bytes % kLine != 0) {
    return invalid("bytes is " + std::to_string(bytes) + "; expected a multiple of 64");
  }
  const auto unusable = [](const void* p) {
    return p == nullptr || reinterpret_cast<uintptr_t>(p) % alignof(float) != 0;
  };
  if (const auto* bad = std::find_if(pieces, pieces + count, unusable); bad != pieces + count) {
    return invalid("pieces[" + std::to_string(bad - pieces) + "] is null or not at a multiple of 4 bytes");
  }
  const auto* addresses = reinterpret_cast<const char* const*>(pieces);
  return measure_by(TESSERA_F32, variant, num_threads, seconds, value, [&](const Kernel& k, const Executor& executor) {
    return gather_rate(k, executor, seconds, addresses, count, bytes);
  });
}

}  // namespace tessera::ceiling
