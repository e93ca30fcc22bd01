#include "runtime/pool.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <thread>

#include "cpu/features.h"
#include "runtime/cpu_count.h"
#include "runtime/environment.h"

namespace tessera {
namespace {

constexpr int kSpins = 1000;  // 10 to 50 us, depending on the CPU's `pause`: longer than a caller needs between loops

// A place where a caller shows its loop to the pool. Entries outlive loops: a helper first counts itself in, then looks
// whether the loop is still there, and the caller first takes the loop away, then waits for the count to drop to 0.
struct alignas(64) Entry {
  std::atomic<bool> taken{false};
  std::atomic<Loop*> loop{nullptr};
  std::atomic<int> next_worker{0};
  std::atomic<int> helpers{0};
};

class Pool {
 public:
  explicit Pool(int size) : cpus_(available_cpus()), size_(size) {}

  int size() const { return size_.load(std::memory_order_relaxed); }
  void resize(int size);
  void run(Loop& loop);

 private:
  Entry* take_entry();
  void start_threads(int wanted);
  void wake(int wanted);
  void wait_for_helpers(Entry& entry) const;

  void thread_main();
  bool help(Entry& entry);
  void idle(uint32_t seen);
  bool retire();

  // Spinning steals time from the loop itself when there are more threads than CPUs.
  int spins() const { return size() <= cpus_ ? kSpins : 0; }

  const int cpus_;
  std::atomic<int> size_;
  std::mutex start_mutex_;
  std::atomic<int> threads_{0};
  alignas(64) std::atomic<uint32_t> published_{0};  // counts loops shown and resizes; idle threads watch it
  alignas(64) std::atomic<int> spinning_{0};
  std::array<Entry, 16> entries_;  // a 17th caller at the same time works alone
};

void Pool::run(Loop& loop) {
  Entry* const entry = take_entry();
  if (entry == nullptr) return loop.work(0);
  start_threads(loop.max_workers() - 1);
  entry->next_worker.store(1, std::memory_order_relaxed);
  entry->loop.store(&loop);
  wake(loop.max_workers() - 1);
  loop.work(0);
  entry->loop.store(nullptr);
  wait_for_helpers(*entry);
  entry->taken.store(false, std::memory_order_release);
}

Entry* Pool::take_entry() {
  for (Entry& entry : entries_) {
    if (!entry.taken.load(std::memory_order_relaxed) && !entry.taken.exchange(true)) return &entry;
  }
  return nullptr;
}

// Fewer threads than wanted are no error: the loop then runs on those there are.
void Pool::start_threads(int wanted) {
  wanted = std::min(wanted, size() - 1);
  if (threads_.load() >= wanted) return;
  const std::lock_guard lock(start_mutex_);
  while (threads_.load() < wanted) {
    try {
      ++threads_;
      std::thread([this] { thread_main(); }).detach();
    } catch (const std::exception&) {
      --threads_;
      return;
    }
  }
}

void Pool::wake(int wanted) {
  ++published_;
  const int asleep_wanted = wanted - spinning_.load();
  if (asleep_wanted >= threads_.load() - 1) {
    published_.notify_all();
  } else {
    for (int i = 0; i < asleep_wanted; ++i) published_.notify_one();
  }
}

void Pool::wait_for_helpers(Entry& entry) const {
  for (int i = spins(); i > 0 && entry.helpers.load() != 0; --i) cpu_relax();
  for (int n; (n = entry.helpers.load()) != 0;) entry.helpers.wait(n);
}

void Pool::thread_main() {
  while (!retire()) {
    const uint32_t seen = published_.load();
    bool helped = false;
    for (Entry& entry : entries_) helped |= help(entry);
    if (!helped) idle(seen);
  }
}

// Returns whether it did any work.
bool Pool::help(Entry& entry) {
  if (entry.loop.load(std::memory_order_relaxed) == nullptr) return false;
  ++entry.helpers;
  Loop* const loop = entry.loop.load();
  bool worked = false;
  if (loop != nullptr && loop->tasks_left()) {
    const int worker = entry.next_worker.fetch_add(1, std::memory_order_relaxed);
    worked = worker < loop->max_workers();
    if (worked) loop->work(worker);
  }
  if (--entry.helpers == 0) entry.helpers.notify_all();
  return worked;
}

// Returns when something has been published after `seen`, or by chance earlier.
void Pool::idle(uint32_t seen) {
  ++spinning_;
  for (int i = spins(); i > 0 && published_.load(std::memory_order_relaxed) == seen; --i) cpu_relax();
  --spinning_;
  published_.wait(seen);
}

// Whether this thread is one too many after a resize, and may end.
bool Pool::retire() {
  int threads = threads_.load();
  while (threads > size() - 1) {
    if (threads_.compare_exchange_weak(threads, threads - 1)) return true;
  }
  return false;
}

void Pool::resize(int size) {
  size_ = size;
  ++published_;
  published_.notify_all();
}

std::atomic<int> requested_size{0};
std::atomic<Pool*> the_pool{nullptr};

int wanted_size() {
  if (const int size = requested_size.load(); size > 0) return size;
  const int size = environment().num_threads;
  return size > 0 ? size : available_cpus();
}

// Never destroyed: its threads may outlive static destructors. A forked child has none of the threads, so it leaves the
// parent's pool alone and makes its own when it needs one.
Pool& pool() {
  if (Pool* const made = the_pool.load(std::memory_order_acquire)) return *made;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { the_pool = nullptr; });
  static_cast<void>(registered);
  auto* const mine = new Pool(wanted_size());
  Pool* first = nullptr;
  if (the_pool.compare_exchange_strong(first, mine)) return *mine;
  delete mine;  // no loop has run on it
  return *first;
}

}  // namespace

int pool_size() { return pool().size(); }

Status set_pool_size(int size) {
  if (size < 0 || size > kMaxThreads) {
    return invalid("n is " + std::to_string(size) + "; expected 0 (the default) to " + std::to_string(kMaxThreads));
  }
  requested_size = size;
  pool().resize(wanted_size());
  return {};
}

void run_on_pool(Loop& loop) { pool().run(loop); }

}  // namespace tessera
