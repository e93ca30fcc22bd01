// The floating-point environment of ISO C, for as long as the object lives: rounding to nearest, subnormals as they are, no
// traps. A host may have set another for its threads, and the library's own threads would inherit that of whichever call
// started them. Afterwards the thread has its own again, flags included. CMake compiles one of
// float_environment_<architecture>.cc.
//
// Cost: 12 ns, once for each call and for each thread of a parallel loop.
#ifndef TESSERA_CPU_FLOAT_ENVIRONMENT_H_
#define TESSERA_CPU_FLOAT_ENVIRONMENT_H_

#include <cstdint>

namespace tessera {

class FloatEnvironment {
 public:
  FloatEnvironment() noexcept;
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  uint64_t hosts_[4];
};

}  // namespace tessera

#endif  // TESSERA_CPU_FLOAT_ENVIRONMENT_H_
