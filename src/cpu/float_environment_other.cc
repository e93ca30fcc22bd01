// By the C library.
#include <cfenv>
#include <cstring>

#include "cpu/float_environment.h"

namespace tessera {

FloatEnvironment::FloatEnvironment() noexcept {
  std::fenv_t host;
  static_assert(sizeof host <= sizeof hosts_);
  std::fegetenv(&host);
  std::memcpy(hosts_, &host, sizeof host);
  std::fesetenv(FE_DFL_ENV);
}

FloatEnvironment::~FloatEnvironment() {
  std::fenv_t host;
  std::memcpy(&host, hosts_, sizeof host);
  std::fesetenv(&host);
}

}  // namespace tessera
