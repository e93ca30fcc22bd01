// TESSERA_TRACE=file.json: a Chrome trace (chrome://tracing, ui.perfetto.dev) of calls and tasks. "%p" in the name
// stands for the process id. A forked child goes on in a file of its own if the name has a %p, else it is not traced.
#ifndef TESSERA_RUNTIME_TRACE_H_
#define TESSERA_RUNTIME_TRACE_H_

#include <cstdint>

#include "core/status.h"

namespace tessera {

int64_t now_ns();  // on a monotonic clock

bool trace_enabled();  // one load and a branch

// Not ok if the file cannot be written. check_context() reports it from every call.
Status trace_status();

// One span on this thread. task < 0: none.
void trace_span(const char* name, int64_t task, int64_t begin_ns, int64_t end_ns);

// Makes the file complete up to here: valid JSON whenever no call is running.
void trace_flush();

}  // namespace tessera

#endif  // TESSERA_RUNTIME_TRACE_H_
