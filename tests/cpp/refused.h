// Calls that are refused before anything is written.
#ifndef TESSERA_TESTS_REFUSED_H_
#define TESSERA_TESTS_REFUSED_H_

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "messages.h"
#include "tensors.h"
#include "tessera/tessera.h"

namespace tessera::test {

// Runs op(args) for each backend after spoil(args); the message begins with the operator, names the argument and says
// `text`, and `outputs` stay as they were.
template <class Args>
void refused(const char* op_name, tessera_status (*op)(const Args*, const tessera_context*), const Args& args,
             const std::vector<TestTensor>& outputs, tessera_status status, const std::string& argument,
             const std::string& text, const std::function<void(Args&)>& spoil) {
  SCOPED_TRACE(argument + ": " + text);
  for (tessera_backend backend : {TESSERA_BACKEND_NATIVE, TESSERA_BACKEND_REFERENCE}) {
    tessera_context context = {};
    context.backend = backend;
    Args bad = args;
    spoil(bad);
    EXPECT_EQ(op(&bad, &context), status);
    const std::string message = tessera_last_error();
    EXPECT_EQ(message.rfind(std::string(op_name) + ": ", 0), 0u) << message;
    EXPECT_TRUE(names(message, argument)) << message;
    EXPECT_NE(message.find(text), std::string::npos) << message;
    for (const TestTensor& output : outputs) EXPECT_TRUE(output.untouched());
  }
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_REFUSED_H_
