// The executor in all its kinds, the workspace, the context's checks and the environment.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/context.h"
#include "runtime/cpu_count.h"
#include "runtime/environment.h"
#include "runtime/executor.h"
#include "runtime/pool.h"
#include "runtime/workspace.h"

namespace tessera {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
constexpr bool kThreadSanitizer = false;
#endif
#if defined(TESSERA_EMULATED_TESTS)
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

// The pool's size for one test.
class PoolSize {
 public:
  explicit PoolSize(int size) { EXPECT_TRUE(set_pool_size(size).ok()); }
  ~PoolSize() { EXPECT_TRUE(set_pool_size(0).ok()); }
};

tessera_executor pool_executor() { return {}; }

tessera_executor threads_executor(int n) {
  tessera_executor e = {};
  e.kind = TESSERA_EXECUTOR_THREADS;
  e.num_threads = n;
  return e;
}

tessera_executor part_executor(int part, int num_parts) {
  tessera_executor e = {};
  e.kind = TESSERA_EXECUTOR_PART;
  e.part = part;
  e.num_parts = num_parts;
  return e;
}

tessera_executor host_executor(tessera_parallel_for parallel_for, int n, void* host = nullptr) {
  tessera_executor e = {};
  e.kind = TESSERA_EXECUTOR_PARALLEL_FOR;
  e.num_threads = n;
  e.parallel_for = parallel_for;
  e.host = host;
  return e;
}

// Hosts: one thread per body; one body after the other, last first; only the first body; every body twice.
void threaded_host(void* host, int32_t n, void (*body)(void*, int32_t), void* arg) {
  if (host != nullptr) *static_cast<int32_t*>(host) = n;
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < n; ++i) threads.emplace_back(body, arg, i);
  for (std::thread& t : threads) t.join();
}
void serial_host(void*, int32_t n, void (*body)(void*, int32_t), void* arg) {
  for (int32_t i = n - 1; i >= 0; --i) body(arg, i);
}
void lazy_host(void*, int32_t, void (*)(void*, int32_t), void*) {}
void eager_host(void* host, int32_t n, void (*body)(void*, int32_t), void* arg) {
  threaded_host(host, n, body, arg);
  threaded_host(host, n, body, arg);
}

// Runs n tasks and expects each to run once, by a worker in range that nobody else is.
void expect_each_task_once(const Executor& executor, int64_t n) {
  std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
  std::vector<std::atomic<bool>> busy(static_cast<size_t>(executor.workers()));
  executor.parallel_for(n, [&](int64_t task, int worker) {
    ASSERT_GE(worker, 0);
    ASSERT_LT(worker, executor.workers());
    EXPECT_FALSE(busy[static_cast<size_t>(worker)].exchange(true)) << "two threads are worker " << worker;
    ++runs[static_cast<size_t>(task)];
    busy[static_cast<size_t>(worker)] = false;
  });
  for (const auto& r : runs) EXPECT_EQ(r, 1);
}

constexpr int64_t kCounts[] = {0, 1, 2, 3, 7, 8, 100, 1001};

TEST(Executor, PoolRunsEachTaskOnce) {
  for (const int size : {1, 2, 3, 7}) {
    const PoolSize pool(size);
    for (const int64_t n : kCounts) {
      SCOPED_TRACE(testing::Message() << size << " threads, " << n << " tasks");
      const Executor executor(pool_executor());
      EXPECT_EQ(executor.workers(), size);
      expect_each_task_once(executor, n);
    }
  }
}

TEST(Executor, ThreadsIsAtMostThePool) {
  const PoolSize pool(4);
  EXPECT_EQ(Executor(threads_executor(3)).workers(), 3);
  EXPECT_EQ(Executor(threads_executor(9)).workers(), 4);
  for (const int64_t n : kCounts) expect_each_task_once(Executor(threads_executor(3)), n);
}

TEST(Executor, HostRunsEachTaskOnce) {
  for (const tessera_parallel_for host : {threaded_host, serial_host, lazy_host, eager_host}) {
    for (const int threads : {1, 2, 5}) {
      for (const int64_t n : kCounts) {
        const Executor executor(host_executor(host, threads));
        EXPECT_EQ(executor.workers(), threads);
        expect_each_task_once(executor, n);
      }
    }
  }
}

TEST(Executor, HostIsAskedForNoMoreBodiesThanTasks) {
  int32_t asked = 0;
  expect_each_task_once(Executor(host_executor(threaded_host, 5, &asked)), 3);
  EXPECT_EQ(asked, 3);
}

TEST(Executor, PartsCoverAllTasksInContiguousShares) {
  for (const int num_parts : {1, 2, 3, 7}) {
    for (const int64_t n : kCounts) {
      std::vector<int64_t> all;
      for (int part = 0; part < num_parts; ++part) {
        const Executor executor(part_executor(part, num_parts));
        EXPECT_EQ(executor.workers(), 1);
        EXPECT_EQ(executor.part(), part);
        EXPECT_EQ(executor.num_parts(), num_parts);
        const size_t before = all.size();
        executor.parallel_for(n, [&](int64_t task, int) { all.push_back(task); });
        EXPECT_LE(static_cast<int64_t>(all.size() - before), n / num_parts + 1);
      }
      ASSERT_EQ(static_cast<int64_t>(all.size()), n);
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
    }
  }
}

TEST(Executor, TasksAreHandedOutInOrder) {
  const PoolSize pool(3);
  std::vector<std::vector<int64_t>> of_worker(3);
  Executor(pool_executor()).parallel_for(500, [&](int64_t task, int worker) {
    of_worker[static_cast<size_t>(worker)].push_back(task);
  });
  for (const auto& tasks : of_worker) EXPECT_TRUE(std::is_sorted(tasks.begin(), tasks.end()));
}

TEST(Executor, ThreadsReallyWorkTogether) {
  const PoolSize pool(2);
  std::atomic<int> arrived{0};
  // Each of the two tasks waits for the other.
  Executor(pool_executor()).parallel_for(2, [&](int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

TEST(Executor, ExceptionReachesTheCallerAfterAllBodiesEnded) {
  const PoolSize pool(3);
  const tessera_executor kinds[] = {pool_executor(), threads_executor(1), part_executor(0, 1),
                                    host_executor(threaded_host, 3), host_executor(serial_host, 3)};
  for (const tessera_executor& kind : kinds) {
    const Executor executor(kind);
    std::atomic<int> running{0};
    const auto run = [&] {
      executor.parallel_for(200, [&](int64_t task, int) {
        ++running;
        std::this_thread::yield();
        --running;
        if (task == 20) throw std::out_of_range("task 20");
      });
    };
    EXPECT_THROW(run(), std::out_of_range);
    EXPECT_EQ(running, 0);
    expect_each_task_once(executor, 50);  // and the executor works as before
  }
}

TEST(Executor, NestedLoopsRunSerially) {
  const PoolSize pool(3);
  for (const tessera_executor& kind : {pool_executor(), host_executor(threaded_host, 3), part_executor(0, 1)}) {
    const Executor outer(kind);
    std::atomic<int> inner_runs{0};
    outer.parallel_for(10, [&](int64_t, int) {
      const std::thread::id thread = std::this_thread::get_id();
      for (const tessera_executor& inner : {pool_executor(), host_executor(threaded_host, 3)}) {
        Executor(inner).parallel_for(5, [&](int64_t, int worker) {
          EXPECT_EQ(worker, 0);
          EXPECT_EQ(std::this_thread::get_id(), thread);
          ++inner_runs;
        });
      }
    });
    EXPECT_EQ(inner_runs, 100);
    expect_each_task_once(outer, 20);
  }
}

TEST(Executor, HostThreadsCallAtTheSameTime) {
  const PoolSize pool(3);
  std::vector<std::thread> callers;
  for (int c = 0; c < 20; ++c) {  // more than the pool has places for
    callers.emplace_back([c] {
      for (int i = 0; i < 50; ++i) {
        if (c % 5 == 0) {
          const auto fail = [](int64_t task, int) {
            if (task == 3) throw std::runtime_error("3");
          };
          EXPECT_THROW(Executor(pool_executor()).parallel_for(10, fail), std::runtime_error);
        } else {
          expect_each_task_once(Executor(c % 2 == 0 ? pool_executor() : threads_executor(2)), 1 + i % 9);
        }
      }
    });
  }
  for (std::thread& t : callers) t.join();
}

TEST(Executor, PoolIsResizedWhileItWorks) {
  const PoolSize pool(2);
  std::atomic<bool> stop{false};
  std::thread resizer([&] {
    for (int i = 0; !stop; ++i) EXPECT_TRUE(set_pool_size(1 + i % 5).ok());
  });
  for (int i = 0; i < 500; ++i) expect_each_task_once(Executor(pool_executor()), 20);
  stop = true;
  resizer.join();
}

TEST(Executor, SleepingThreadsWakeUp) {
  const PoolSize pool(3);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> arrived{0};
    Executor(pool_executor()).parallel_for(3, [&](int64_t, int) {
      ++arrived;
      while (arrived < 3) std::this_thread::yield();
    });
  }
}

// Runs f in a forked child, which exits with its result.
template <class F>
int in_child(F&& f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that hangs must not hang the tests
    _exit(f());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

int use_pool_and_workspace() {
  std::atomic<int> arrived{0};
  Executor(pool_executor()).parallel_for(3, [&](int64_t, int) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  const Workspace workspace({}, 1000);
  workspace.data()[999] = std::byte{1};
  return 7;
}

TEST(Executor, ForkedChildMakesItsOwnPool) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer forbids threads in a forked child";
  const PoolSize pool(3);
  EXPECT_EQ(use_pool_and_workspace(), 7);
  EXPECT_EQ(in_child(use_pool_and_workspace), 7);
  EXPECT_EQ(use_pool_and_workspace(), 7);
}

TEST(Executor, ForkDuringOtherThreadsCalls) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer forbids threads in a forked child";
  if (kEmulated) GTEST_SKIP() << "qemu-user fails when a process with busy threads forks";
  const PoolSize pool(3);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) use_pool_and_workspace();
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(in_child(use_pool_and_workspace), 7);
  stop = true;
  other.join();
}

TEST(Pool, SizeIsChecked) {
  EXPECT_EQ(tessera_set_num_threads(-1), TESSERA_INVALID_ARGUMENT);
  EXPECT_STREQ(tessera_last_error(), "set_num_threads: n is -1; expected 0 (the default) to 4096");
  EXPECT_EQ(tessera_set_num_threads(3), TESSERA_OK);
  EXPECT_EQ(tessera_get_num_threads(), 3);
  EXPECT_EQ(tessera_set_num_threads(0), TESSERA_OK);
  EXPECT_EQ(tessera_get_num_threads(), environment().num_threads > 0 ? environment().num_threads : available_cpus());
}

TEST(Workspace, IsAlignedReusedAndGrows) {
  std::byte* first = nullptr;
  {
    const Workspace w({}, 3000);
    first = w.data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % kWorkspaceAlignment, 0u);
  }
  {
    const Workspace w({}, 2000);
    EXPECT_EQ(w.data(), first);
    const Workspace other({}, 2000);
    EXPECT_NE(other.data(), first);
  }
  const Workspace large({}, size_t{5} << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % kWorkspaceAlignment, 0u);
  large.data()[(size_t{5} << 20) - 1] = std::byte{1};
}

TEST(Workspace, UsesTheCallers) {
  alignas(64) std::byte memory[256];
  tessera_context context = {};
  context.workspace = memory;
  context.workspace_bytes = sizeof(memory);
  EXPECT_EQ(Workspace(context, 256).data(), memory);
  EXPECT_THROW(Workspace(context, 257), StatusError);
  EXPECT_THROW(Workspace({}, SIZE_MAX - 5), std::bad_alloc);
}

void expect_refused(const tessera_context& context, const std::string& text) {
  tessera_context checked;
  const Status s = check_context(&context, &checked);
  EXPECT_EQ(s.code, TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(s.text.find(text), std::string::npos) << s.text;
}

// As a C caller may.
template <class Enum>
void put_number(int number, Enum* value) {
  std::memcpy(value, &number, sizeof(number));
}

TEST(Context, DefaultsAndRefusals) {
  tessera_context checked;
  EXPECT_TRUE(check_context(nullptr, &checked).ok());
  EXPECT_EQ(checked.executor.kind, TESSERA_EXECUTOR_POOL);
  EXPECT_EQ(checked.workspace, nullptr);

  tessera_context c = {};
  for (const char* name : {"scalar", "avx2", "avx512", "avx512bf16", "neon", "neonbf16"}) {
    c.variant = name;
    EXPECT_TRUE(check_context(&c, &checked).ok());
  }
  c.variant = "sse9";
  expect_refused(c, "context.variant is \"sse9\"; expected avx512bf16, avx512, avx2, neonbf16, neon, scalar");

  c = {};
  c.executor = threads_executor(0);
  expect_refused(c, "context.executor.num_threads is 0");
  c.executor = host_executor(nullptr, 2);
  expect_refused(c, "context.executor.parallel_for is NULL");
  c.executor = part_executor(0, 0);
  expect_refused(c, "context.executor.num_parts is 0");
  c.executor = part_executor(2, 2);
  expect_refused(c, "context.executor.part is 2");
  c.executor = part_executor(-1, 2);
  expect_refused(c, "context.executor.part is -1");
  c.executor = {};
  put_number(9, &c.executor.kind);
  expect_refused(c, "context.executor.kind is 9");

  c = {};
  put_number(2, &c.backend);
  expect_refused(c, "context.backend is 2");

  alignas(64) std::byte memory[128];
  c = {};
  c.workspace = memory + 8;
  expect_refused(c, "context.workspace is not at a multiple of 64 bytes");
}

TEST(Environment, ValuesAreParsedOrRefused) {
  const Environment none = parse_environment(nullptr, "", nullptr);
  EXPECT_TRUE(none.status.ok());
  EXPECT_EQ(none.num_threads, 0);
  EXPECT_EQ(none.log_level, kLogNothing);
  EXPECT_EQ(none.trace_path, "");

  const Environment all = parse_environment("12", "3", "trace.json");
  EXPECT_TRUE(all.status.ok());
  EXPECT_EQ(all.num_threads, 12);
  EXPECT_EQ(all.log_level, kLogLoops);
  EXPECT_EQ(all.trace_path, "trace.json");

  for (const char* bad : {"0", "-1", "two", "2x", " 2", "99999999999"}) {
    const Status s = parse_environment(bad, nullptr, nullptr).status;
    EXPECT_EQ(s.code, TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(s.text, "TESSERA_NUM_THREADS is \"" + std::string(bad) + "\"; expected an integer from 1 to 4096");
  }
  EXPECT_EQ(parse_environment(nullptr, "4", nullptr).status.code, TESSERA_INVALID_ARGUMENT);
}

// A directory tree that looks like /proc and /sys.
class FakeRoot {
 public:
  FakeRoot() {
    char name[] = "/tmp/tessera-test-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~FakeRoot() { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  double quota() const { return cgroup_cpu_quota(root_); }

 private:
  std::string root_;
};

TEST(CpuCount, CgroupV2QuotaIsTheLeastOfAllAncestors) {
  const FakeRoot root;
  EXPECT_TRUE(std::isinf(root.quota()));
  root.write("/proc/self/cgroup", "0::/a/b\n");
  EXPECT_TRUE(std::isinf(root.quota()));
  root.write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_TRUE(std::isinf(root.quota()));
  root.write("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(root.quota(), 2.5);
  root.write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(root.quota(), 0.5);
}

TEST(CpuCount, CgroupV1QuotaOfAContainer) {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "5:memory:/host/x\n4:cpu,cpuacct:/host/x\n3:cpuset:/host/x\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_TRUE(std::isinf(root.quota()));
  root.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(root.quota(), 3);
  root.write("/sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "100000\n");  // not the cpu controller
  EXPECT_EQ(root.quota(), 3);
}

TEST(CpuCount, IsPositive) { EXPECT_GE(available_cpus(), 1); }

}  // namespace
}  // namespace tessera
