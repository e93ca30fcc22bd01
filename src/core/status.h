// The result of everything that can be refused. Library code returns it; only src/api turns it into a C status.
#ifndef TESSERA_CORE_STATUS_H_
#define TESSERA_CORE_STATUS_H_

#include <exception>
#include <string>
#include <utility>

#include "tessera/tessera.h"

namespace tessera {

// `text` says which argument, what came and what is expected. api_call() puts the operator's name in front.
struct Status {
  tessera_status code = TESSERA_OK;
  std::string text;

  bool ok() const { return code == TESSERA_OK; }
};

inline Status invalid(std::string text) { return {TESSERA_INVALID_ARGUMENT, std::move(text)}; }
inline Status type_error(std::string text) { return {TESSERA_TYPE_ERROR, std::move(text)}; }
inline Status not_implemented(std::string text) { return {TESSERA_NOT_IMPLEMENTED, std::move(text)}; }

// A refusal from a constructor, which has no other way out. api_call() turns it back into its status.
struct StatusError : std::exception {
  explicit StatusError(Status s) : status(std::move(s)) {}
  const char* what() const noexcept override { return status.text.c_str(); }

  Status status;
};

}  // namespace tessera

#endif  // TESSERA_CORE_STATUS_H_
