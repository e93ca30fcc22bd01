// One parallel loop while it runs: the counter that hands out its tasks, and the first exception.
#ifndef TESSERA_RUNTIME_LOOP_H_
#define TESSERA_RUNTIME_LOOP_H_

#include <atomic>
#include <cstdint>
#include <exception>

#include "runtime/executor.h"

namespace tessera {

class Loop {
 public:
  // Tasks [begin, end) on at most max_workers threads.
  Loop(int64_t begin, int64_t end, int max_workers, LoopBody body, const char* name)
      : body_(body), name_(name), end_(end), max_workers_(max_workers), next_(begin) {}

  int max_workers() const { return max_workers_; }
  bool tasks_left() const { return next_.load(std::memory_order_relaxed) < end_; }

  // Runs tasks until none is left to hand out. Each worker index is used by one thread.
  void work(int worker) noexcept;

  // Rethrows a body's exception. Called when no thread is in work().
  void rethrow() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  void run_tasks(int worker);
  void run_traced_tasks(int worker);

  const LoopBody body_;
  const char* const name_;
  const int64_t end_;
  const int max_workers_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  alignas(64) std::atomic<int64_t> next_;  // a cache line of its own: every worker writes it
};

// Whether this thread is running a body right now.
bool inside_loop();

}  // namespace tessera

#endif  // TESSERA_RUNTIME_LOOP_H_
