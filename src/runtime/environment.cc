#include "runtime/environment.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace tessera {
namespace {

bool is_set(const char* value) { return value != nullptr && *value != '\0'; }

// Reads an integer in [low, high] from `value` if it is set, else leaves *result.
Status parse(const char* name, const char* value, int low, int high, int* result) {
  if (!is_set(value)) return {};
  const std::string_view text = value;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= low && number <= high) {
    *result = number;
    return {};
  }
  return invalid(std::string(name) + " is \"" + value + "\"; expected an integer from " + std::to_string(low) + " to " +
                 std::to_string(high));
}

}  // namespace

Environment parse_environment(const char* num_threads, const char* log_level, const char* trace_path) {
  Environment e;
  e.status = parse("TESSERA_NUM_THREADS", num_threads, 1, kMaxThreads, &e.num_threads);
  if (e.status.ok()) e.status = parse("TESSERA_LOG", log_level, kLogNothing, kLogLoops, &e.log_level);
  if (is_set(trace_path)) e.trace_path = trace_path;
  return e;
}

const Environment& environment() {
  static const Environment* const e = new Environment(
      parse_environment(std::getenv("TESSERA_NUM_THREADS"), std::getenv("TESSERA_LOG"), std::getenv("TESSERA_TRACE")));
  return *e;
}

}  // namespace tessera
