// Scratch memory of one call: the caller's, or a buffer that the library keeps for later calls.
#ifndef TESSERA_RUNTIME_WORKSPACE_H_
#define TESSERA_RUNTIME_WORKSPACE_H_

#include <cstddef>

#include "tessera/tessera.h"

namespace tessera {

inline constexpr size_t kWorkspaceAlignment = 64;

class Workspace {
 public:
  // At least `bytes` at a 64-byte boundary, with undefined contents. Throws StatusError if the caller's workspace is
  // too small, std::bad_alloc if there is no memory; so an operator makes it before it writes anything. `used`: so much
  // of the caller's workspace belongs to others of this call.
  Workspace(const tessera_context& context, size_t bytes, size_t used = 0);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t kept_bytes_ = 0;  // size of the library's buffer; 0: the memory is the caller's, or none
};

}  // namespace tessera

#endif  // TESSERA_RUNTIME_WORKSPACE_H_
