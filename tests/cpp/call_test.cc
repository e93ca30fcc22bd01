// The frame of a C call: statuses and messages, and the environment variables that this library obeys. These are read
// once per process, so each such test runs this binary again with the variable set and one call in it.
#include "api/call.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "tessera/tessera.h"

namespace tessera {
namespace {

tessera_status tessera_fails(const std::function<Status()>& f) { return api_call(f); }

void expect_failure(const std::function<Status()>& f, tessera_status status, const std::string& message) {
  EXPECT_EQ(tessera_fails(f), status);
  EXPECT_EQ(tessera_last_error(), message);
}

TEST(Call, StatusesAndExceptionsBecomeCodesAndMessages) {
  expect_failure([] { return invalid("q is odd"); }, TESSERA_INVALID_ARGUMENT, "fails: q is odd");
  expect_failure([] { return type_error("q is int64"); }, TESSERA_TYPE_ERROR, "fails: q is int64");
  expect_failure([] { return not_implemented("no"); }, TESSERA_NOT_IMPLEMENTED, "fails: no");
  expect_failure([]() -> Status { throw StatusError(invalid("too small")); }, TESSERA_INVALID_ARGUMENT,
                 "fails: too small");
  expect_failure([]() -> Status { throw std::bad_alloc(); }, TESSERA_OUT_OF_MEMORY, "fails: out of memory");
  expect_failure([]() -> Status { throw std::logic_error("bug"); }, TESSERA_INTERNAL, "fails: bug");
  expect_failure([]() -> Status { throw 3; }, TESSERA_INTERNAL, "fails: unknown exception");
  EXPECT_EQ(tessera_fails([] { return Status{}; }), TESSERA_OK);
}

TEST(Call, LongMessagesAreCut) {
  tessera_fails([] { return invalid(std::string(5000, 'x')); });
  const std::string message = tessera_last_error();
  EXPECT_GE(message.size(), 1000u);
  EXPECT_EQ(message.find_first_not_of('x', 7), std::string::npos);
}

TEST(Call, EachThreadHasItsOwnMessage) {
  tessera_fails([] { return invalid("here"); });
  std::thread([] {
    EXPECT_STREQ(tessera_last_error(), "");
    tessera_fails([] { return invalid("there"); });
  }).join();
  EXPECT_STREQ(tessera_last_error(), "fails: here");
}

TEST(Call, Version) {
  const std::string version = std::to_string(TESSERA_VERSION_MAJOR) + "." + std::to_string(TESSERA_VERSION_MINOR) +
                              "." + std::to_string(TESSERA_VERSION_PATCH);
  EXPECT_EQ(tessera_version(), version);
  EXPECT_EQ(tessera_abi_version(), TESSERA_ABI_VERSION);
}

// ---- In a process of its own ---------------------------------------------------------------------------------------

// Merges two states of 4,096 rows, then none. In a child it prints the first outcome.
TEST(Call, Child) {
  static float o[4096 * 8], lse[4096], out[4096 * 8], out_lse[4096];
  const tessera_tensor matrix = {o, TESSERA_F32, 2, {4096, 8}, {8, 1}};
  const tessera_tensor vector = {lse, TESSERA_F32, 1, {4096}, {1}};
  const tessera_tensor os[] = {matrix, matrix}, lses[] = {vector, vector};
  tessera_merge_states_args a = {os, lses, 2, matrix, vector};
  a.out.data = out;
  a.lse.data = out_lse;
  const tessera_status status = tessera_merge_states(&a, nullptr);
  const bool in_child = std::getenv("TESSERA_TEST_CHILD") != nullptr;
  if (in_child) std::printf("status %d threads %d: %s\n", status, tessera_get_num_threads(), tessera_last_error());
  a.num_states = 0;
  tessera_merge_states(&a, nullptr);
}

// stdout and stderr of the child with `variable` set; "" where a process cannot run itself, as in an emulator.
std::string run_child(const std::string& variable) {
  const std::string self = "/proc/" + std::to_string(getpid()) + "/exe";
  const std::string command = "TESSERA_TEST_CHILD=1 " + variable + " " + self + " --gtest_filter=Call.Child 2>&1";
  std::FILE* const pipe = popen(command.c_str(), "r");
  std::string output;
  for (int c; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  pclose(pipe);
  return output.find("] Call.Child") != std::string::npos ? output : "";
}

void expect_child_says(const std::string& variable, const std::string& text) {
  const std::string output = run_child(variable);
  if (output.empty()) GTEST_SKIP() << "no self-execution here";
  EXPECT_NE(output.find(text), std::string::npos) << output;
}

TEST(Environment, NumThreadsIsObeyed) { expect_child_says("TESSERA_NUM_THREADS=3", "status 0 threads 3: \n"); }

TEST(Environment, BadNumThreadsFailsEachCall) {
  expect_child_says("TESSERA_NUM_THREADS=many", "status 1 threads");
  expect_child_says("TESSERA_NUM_THREADS=many", "merge_states: TESSERA_NUM_THREADS is \"many\"; expected an integer");
}

TEST(Environment, BadMaxIsaFailsEachCall) {
  expect_child_says("TESSERA_MAX_ISA=sse2", "merge_states: TESSERA_MAX_ISA is \"sse2\"; expected avx512bf16, avx512");
}

TEST(Environment, BadTraceFailsEachCall) {
  expect_child_says("TESSERA_TRACE=/no/such/place.json", "TESSERA_TRACE is \"/no/such/place.json\"; expected");
}

TEST(Environment, LogLevels) {
  const char* const failure = "tessera: merge_states: num_states is 0; expected at least 1\n";
  const char* const call = "tessera: merge_states: ok, ";
  const char* const loop = "tessera:   merge_states: 2 tasks, ";
  const char* const lines[] = {failure, call, loop};
  for (int level = 0; level <= 3; ++level) {
    const std::string output = run_child("TESSERA_LOG=" + std::to_string(level));
    if (output.empty()) GTEST_SKIP() << "no self-execution here";
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(output.find(lines[i]) != std::string::npos, i < level) << level << ": " << output;
    }
  }
}

TEST(Environment, TraceIsCompleteJson) {
  char name[] = "/tmp/tessera-trace-XXXXXX";
  close(mkstemp(name));
  const std::string output = run_child("TESSERA_TRACE=" + std::string(name));
  std::stringstream text;
  text << std::ifstream(name).rdbuf();
  std::remove(name);
  if (output.empty()) GTEST_SKIP() << "no self-execution here";
  const std::string trace = text.str();
  EXPECT_EQ(trace.rfind("[\n{", 0), 0u) << trace;
  EXPECT_EQ(trace.substr(trace.size() - 4), "}\n]\n") << trace;
  size_t lines = 0, tasks = 0, calls = 0;
  for (std::string line; std::getline(text, line); ++lines) {
    tasks += line.find("{\"name\":\"merge_states\",\"ph\":\"X\"") == 0 && line.find("\"args\":{\"task\":") != line.npos;
    calls += line.find("{\"name\":\"merge_states\",\"ph\":\"X\"") == 0 && line.find("\"args\"") == line.npos;
  }
  EXPECT_EQ(tasks, 2u) << trace;
  EXPECT_EQ(calls, 2u) << trace;
  EXPECT_GE(lines, 7u);
}

}  // namespace
}  // namespace tessera
