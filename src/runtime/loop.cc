#include "runtime/loop.h"

#include "cpu/float_environment.h"
#include "runtime/trace.h"

namespace tessera {
namespace {

thread_local bool inside = false;

}  // namespace

bool inside_loop() { return inside; }

void Loop::work(int worker) noexcept {
  const FloatEnvironment standard;
  const bool was_inside = inside;
  inside = true;
  try {
    trace_enabled() ? run_traced_tasks(worker) : run_tasks(worker);
  } catch (...) {
    next_.store(end_, std::memory_order_relaxed);
    if (!failed_.exchange(true)) error_ = std::current_exception();
  }
  inside = was_inside;
}

void Loop::run_tasks(int worker) {
  for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < end_;) {
    body_.call(body_.body, task, worker);
  }
}

void Loop::run_traced_tasks(int worker) {
  for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < end_;) {
    const int64_t begin = now_ns();
    body_.call(body_.body, task, worker);
    trace_span(name_, task, begin, now_ns());
  }
}

}  // namespace tessera
