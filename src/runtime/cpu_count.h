// How many threads this process may keep busy.
#ifndef TESSERA_RUNTIME_CPU_COUNT_H_
#define TESSERA_RUNTIME_CPU_COUNT_H_

#include <string>

namespace tessera {

// CPUs in this thread's affinity mask, but no more than the cgroup's CPU quota, rounded up. At least 1.
int available_cpus();

// CPUs per period that the cgroups of this process (v2, or v1's cpu controller) allow, all their ancestors included;
// infinity without a limit. `root` is put in front of /proc and /sys.
double cgroup_cpu_quota(const std::string& root = "");

}  // namespace tessera

#endif  // TESSERA_RUNTIME_CPU_COUNT_H_
