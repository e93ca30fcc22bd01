// Runs the tasks of an operator on the threads that the caller's context asks for.
#ifndef TESSERA_RUNTIME_EXECUTOR_H_
#define TESSERA_RUNTIME_EXECUTOR_H_

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera {

// The body of a parallel loop without its type.
struct LoopBody {
  void (*call)(const void* body, int64_t task, int worker);
  const void* body;
};

class Executor {
 public:
  explicit Executor(const tessera_executor& e);  // e has passed check_context()

  // The most bodies that run at once, which is the number of scratch slots an operator needs. PART: 1.
  int workers() const { return workers_; }

  // Which share of the tasks this call does. 0 of 1 unless the executor is PART.
  int part() const { return part_; }
  int num_parts() const { return num_parts_; }

  // Runs body(int64_t task, int worker) for every task in [0, n) and returns when all have ended. PART: only the tasks
  // of this part, a contiguous share, one after the other. Tasks are handed out in increasing order from one counter;
  // within one parallel_for a worker index in [0, workers()) is held by one thread at a time. The first exception of a
  // body stops the handing out of tasks and is rethrown here after the running bodies have ended. Called from inside
  // a body it runs serially, as worker 0. Nothing is allocated once the threads exist. `name`, a string literal,
  // is what a trace calls the tasks.
  template <class Body>
  void parallel_for(int64_t n, const Body& body, const char* name = "tasks") const {
    run(n, {[](const void* b, int64_t task, int worker) { (*static_cast<const Body*>(b))(task, worker); }, &body},
        name);
  }

 private:
  void run(int64_t n, LoopBody body, const char* name) const;

  tessera_executor executor_;
  int workers_ = 1;
  int part_ = 0;
  int num_parts_ = 1;
};

}  // namespace tessera

#endif  // TESSERA_RUNTIME_EXECUTOR_H_
