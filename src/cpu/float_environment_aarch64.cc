// FPCR, which controls, and FPSR, which has the flags.
#include "cpu/float_environment.h"

namespace tessera {
namespace {

void set(uint64_t control, uint64_t status) {
  asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(control), "r"(status));
}

}  // namespace

FloatEnvironment::FloatEnvironment() noexcept {
  asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(hosts_[0]), "=r"(hosts_[1]));
  set(0, 0);
}

FloatEnvironment::~FloatEnvironment() { set(hosts_[0], hosts_[1]); }

}  // namespace tessera
