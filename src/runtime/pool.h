// The library's threads. They start when a loop first needs them, help whichever loop has tasks, and live until the
// process ends. Any number of host threads may run loops at once; each takes part in its own loop, so none ever waits
// for a free thread.
//
// Cost: a published loop is one entry in a fixed table that idle threads watch, first spinning for some 20 us, then
// asleep in the kernel. Entering and leaving a loop takes a few atomic operations and no lock, so a loop of a few
// microseconds that follows another is worth sharing.
#ifndef TESSERA_RUNTIME_POOL_H_
#define TESSERA_RUNTIME_POOL_H_

#include "core/status.h"
#include "runtime/loop.h"

namespace tessera {

// The most threads that work on one loop, the calling one included.
int pool_size();

// 0: the default, which is TESSERA_NUM_THREADS, else available_cpus(). Loops that run keep the threads they have.
Status set_pool_size(int size);

// Runs the loop on this thread and on up to loop.max_workers() - 1 threads of the pool.
void run_on_pool(Loop& loop);

}  // namespace tessera

#endif  // TESSERA_RUNTIME_POOL_H_
