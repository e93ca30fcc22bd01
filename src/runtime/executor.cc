#include "runtime/executor.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "runtime/environment.h"
#include "runtime/loop.h"
#include "runtime/pool.h"
#include "runtime/trace.h"

namespace tessera {
namespace {

// The host runs `max_workers` bodies, each of which takes a worker index and then tasks until none is left. Should the
// host run fewer, the rest is done here; should it run more, they find nothing to do.
void run_on_host(const tessera_executor& executor, Loop& loop) {
  struct Shared {
    Loop& loop;
    std::atomic<int> next_worker{0};
  } shared{loop};
  const auto body = [](void* arg, int32_t) {
    auto& s = *static_cast<Shared*>(arg);
    const int worker = s.next_worker.fetch_add(1, std::memory_order_relaxed);
    if (worker < s.loop.max_workers()) s.loop.work(worker);
  };
  executor.parallel_for(executor.host, loop.max_workers(), body, &shared);
  body(&shared, 0);
}

}  // namespace

Executor::Executor(const tessera_executor& e) : executor_(e) {
  switch (e.kind) {
    case TESSERA_EXECUTOR_POOL: workers_ = pool_size(); break;
    case TESSERA_EXECUTOR_THREADS: workers_ = std::min<int>(e.num_threads, pool_size()); break;
    case TESSERA_EXECUTOR_PARALLEL_FOR: workers_ = e.num_threads; break;
    case TESSERA_EXECUTOR_PART:
      part_ = e.part;
      num_parts_ = e.num_parts;
      break;
  }
}

void Executor::run(int64_t n, LoopBody body, const char* name) const {
  const int64_t share = n / num_parts_, rest = n % num_parts_;
  const int64_t begin = part_ * share + std::min<int64_t>(part_, rest);
  const int64_t end = begin + share + (part_ < rest ? 1 : 0);
  if (begin >= end) return;

  const bool log = environment().log_level >= kLogLoops;
  const int64_t start_ns = log ? now_ns() : 0;
  const int workers = inside_loop() ? 1 : static_cast<int>(std::min<int64_t>(workers_, end - begin));
  Loop loop(begin, end, workers, body, name);
  if (workers == 1) {
    loop.work(0);
  } else if (executor_.kind == TESSERA_EXECUTOR_PARALLEL_FOR) {
    run_on_host(executor_, loop);
  } else {
    run_on_pool(loop);
  }
  if (log) {
    std::fprintf(stderr, "tessera:   %s: %" PRId64 " tasks, %d workers, %.3f ms\n", name, end - begin, workers,
                 1e-6 * static_cast<double>(now_ns() - start_ns));
  }
  loop.rethrow();
}

}  // namespace tessera
