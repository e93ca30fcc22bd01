// How often this process has asked for memory so far, by malloc() or anything that comes down to it.
#ifndef EXAMPLES_GGML_HOST_ALLOCATIONS_H_
#define EXAMPLES_GGML_HOST_ALLOCATIONS_H_

#include <cstdint>

int64_t allocations_so_far();

#endif  // EXAMPLES_GGML_HOST_ALLOCATIONS_H_
