// Stands in front of glibc's functions. Other C libraries and the sanitizers, which do the same, are left alone.
#include "allocations.h"

#include <atomic>
#include <cstdlib>

namespace {
std::atomic<int64_t> allocations = 0;
}

int64_t allocations_so_far() { return allocations; }

#if defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#if defined(__GLIBC__) && !SANITIZED
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* p, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) { return ++allocations, __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return ++allocations, __libc_calloc(count, bytes); }
void* realloc(void* p, size_t bytes) { return ++allocations, __libc_realloc(p, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return ++allocations, __libc_memalign(alignment, bytes); }
int posix_memalign(void** p, size_t alignment, size_t bytes) {
  *p = __libc_memalign(alignment, bytes);
  return ++allocations, *p == nullptr ? 12 : 0;  // ENOMEM
}
}
#endif
