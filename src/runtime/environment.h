// The environment variables that the runtime obeys. TESSERA_MAX_ISA is in cpu/features.h.
#ifndef TESSERA_RUNTIME_ENVIRONMENT_H_
#define TESSERA_RUNTIME_ENVIRONMENT_H_

#include <string>

#include "core/status.h"

namespace tessera {

inline constexpr int kMaxThreads = 4096;

enum LogLevel { kLogNothing = 0, kLogFailures = 1, kLogCalls = 2, kLogLoops = 3 };

struct Environment {
  int num_threads = 0;          // TESSERA_NUM_THREADS; 0: not set
  int log_level = kLogNothing;  // TESSERA_LOG
  std::string trace_path;       // TESSERA_TRACE; empty: not set
  Status status;                // not ok if a value above cannot be obeyed
};

Environment parse_environment(const char* num_threads, const char* log_level, const char* trace_path);

// Read once, at the first call.
const Environment& environment();

}  // namespace tessera

#endif  // TESSERA_RUNTIME_ENVIRONMENT_H_
