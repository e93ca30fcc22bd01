#include "runtime/trace.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <mutex>

#include "runtime/environment.h"

namespace tessera {
namespace {

// Lives as long as the process, so that threads may trace while static destructors run.
struct Trace {
  std::mutex mutex;
  std::atomic<std::FILE*> file{nullptr};
  bool failed = false;
};

constexpr char kEnd[] = "\n]\n";

std::FILE* open_file() {
  std::string path = environment().trace_path;
  if (const size_t at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return nullptr;
  if (std::fseek(file, 0, SEEK_CUR) != 0) {  // a pipe cannot be kept complete
    std::fclose(file);
    return nullptr;
  }
  std::fprintf(file, "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"tessera\"}}",
               static_cast<int>(getpid()));
  return file;
}

Trace& trace() {
  static Trace* const t = [] {
    auto* const made = new Trace;
    if (environment().trace_path.empty()) return made;
    made->file = open_file();
    made->failed = made->file == nullptr;
    // Nothing may be left in the buffer that the child shares, or both processes would write it.
    pthread_atfork(
        [] {
          trace().mutex.lock();
          if (std::FILE* const file = trace().file) std::fflush(file);
        },
        [] { trace().mutex.unlock(); },
        [] {
          const bool own_file = environment().trace_path.find("%p") != std::string::npos;
          trace().file = own_file && trace().file != nullptr ? open_file() : nullptr;
          trace().mutex.unlock();
        });
    return made;
  }();
  return *t;
}

int thread_number() {
  static std::atomic<int> threads{0};
  thread_local const int number = threads.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

int64_t now_ns() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool trace_enabled() { return trace().file.load(std::memory_order_relaxed) != nullptr; }

Status trace_status() {
  if (!trace().failed) return {};
  return invalid("TESSERA_TRACE is \"" + environment().trace_path + "\"; expected a file that can be written");
}

void trace_span(const char* name, int64_t task, int64_t begin_ns, int64_t end_ns) {
  const int thread = thread_number();
  const std::lock_guard lock(trace().mutex);
  std::FILE* const file = trace().file;
  if (file == nullptr) return;
  std::fprintf(file, ",\n{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d", name,
               1e-3 * static_cast<double>(begin_ns), 1e-3 * static_cast<double>(end_ns - begin_ns),
               static_cast<int>(getpid()), thread);
  if (task >= 0) std::fprintf(file, ",\"args\":{\"task\":%" PRId64 "}", task);
  std::fputc('}', file);
}

void trace_flush() {
  const std::lock_guard lock(trace().mutex);
  std::FILE* const file = trace().file;
  if (file == nullptr) return;
  std::fputs(kEnd, file);
  std::fflush(file);
  std::fseek(file, -static_cast<long>(sizeof(kEnd) - 1), SEEK_CUR);  // the next span overwrites the end
}

}  // namespace tessera
