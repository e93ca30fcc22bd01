#include "runtime/workspace.h"

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "core/status.h"

namespace tessera {
namespace {

struct Buffer {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

constexpr size_t kPage = size_t{4} << 10, kHugePage = size_t{2} << 20, kHugeFrom = size_t{4} << 20;

Buffer allocate(size_t bytes) {
  const size_t alignment = bytes >= kHugeFrom ? kHugePage : kPage;
  if (bytes > SIZE_MAX - alignment) throw std::bad_alloc();
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // A wish: without huge pages the same memory costs more TLB misses.
  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
#endif
  return {static_cast<std::byte*>(data), rounded};
}

// Buffers that no call uses. There are never more than calls that ran at the same time, and at most kKept.
class FreeList {
 public:
  // The smallest buffer with room for `bytes`; else the largest one grows.
  Buffer take(size_t bytes) {
    Buffer taken;
    {
      const std::lock_guard lock(mutex_);
      Buffer* best = nullptr;
      for (Buffer& b : kept_) {
        if (b.data != nullptr && (best == nullptr || better(b.bytes, best->bytes, bytes))) best = &b;
      }
      if (best != nullptr) taken = std::exchange(*best, {});
    }
    if (taken.bytes >= bytes) return taken;
    std::free(taken.data);
    return allocate(bytes);
  }

  void give_back(Buffer buffer) {
    {
      const std::lock_guard lock(mutex_);
      for (Buffer& b : kept_) {
        if (b.data == nullptr) {
          b = buffer;
          return;
        }
      }
    }
    std::free(buffer.data);
  }

  std::mutex& mutex() { return mutex_; }

 private:
  static bool better(size_t candidate, size_t best, size_t wanted) {
    return candidate >= wanted ? best < wanted || candidate < best : candidate > best;
  }

  static constexpr int kKept = 16;
  std::mutex mutex_;
  Buffer kept_[kKept];
};

// Never destroyed, since calls may still run while static destructors do. Locked across a fork, so that the child finds
// it whole.
FreeList& free_list() {
  static FreeList* const list = [] {
    auto* const made = new FreeList;
    pthread_atfork([] { free_list().mutex().lock(); }, [] { free_list().mutex().unlock(); },
                   [] { free_list().mutex().unlock(); });
    return made;
  }();
  return *list;
}

}  // namespace

Workspace::Workspace(const tessera_context& context, size_t bytes, size_t used) {
  if (context.workspace != nullptr) {
    if (context.workspace_bytes < used || context.workspace_bytes - used < bytes) {
      throw StatusError(invalid("context.workspace_bytes is " + std::to_string(context.workspace_bytes) +
                                "; expected at least " + std::to_string(used + bytes)));
    }
    data_ = static_cast<std::byte*>(context.workspace) + used;
  } else if (bytes > 0) {
    const Buffer buffer = free_list().take(bytes);
    data_ = buffer.data;
    kept_bytes_ = buffer.bytes;
  }
}

Workspace::~Workspace() {
  if (kept_bytes_ > 0) free_list().give_back({data_, kept_bytes_});
}

}  // namespace tessera
