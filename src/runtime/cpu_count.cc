#include "runtime/cpu_count.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace tessera {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

int affinity_cpus() {
#if defined(__linux__)
  // The kernel refuses a set smaller than its own.
  for (int cpus = CPU_SETSIZE; cpus <= 64 * CPU_SETSIZE; cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(cpus);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

double ratio(double quota, double period) { return quota > 0 && period > 0 ? quota / period : kUnlimited; }

// v2: "max 100000" or "150000 100000".
double quota_v2(const std::string& directory) {
  std::ifstream file(directory + "/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period ? ratio(quota, period) : kUnlimited;
}

// v1: -1 or microseconds, in two files.
double quota_v1(const std::string& directory) {
  std::ifstream quota_file(directory + "/cpu.cfs_quota_us"), period_file(directory + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period ? ratio(quota, period) : kUnlimited;
}

// The least quota of `group` and its ancestors. In a container the group's path is often the host's and does not
// exist under the mount; the walk then ends at the mount itself, which is the container's group.
double walk(const std::string& mount, std::string group, double (*read)(const std::string&)) {
  double least = read(mount);
  while (group.size() > 1) {
    least = std::min(least, read(mount + group));
    group.resize(group.rfind('/'));
  }
  return least;
}

bool lists_cpu(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

}  // namespace

double cgroup_cpu_quota(const std::string& root) {
  double least = kUnlimited;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/path", or "0::/path" for v2
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos || line[second + 1] != '/') continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    const std::string mounts = root + "/sys/fs/cgroup";
    if (controllers.empty()) {
      least = std::min({least, walk(mounts, group, quota_v2), walk(mounts + "/unified", group, quota_v2)});
    } else if (lists_cpu(controllers)) {
      least =
          std::min({least, walk(mounts + "/cpu", group, quota_v1), walk(mounts + "/" + controllers, group, quota_v1)});
    }
  }
  return least;
}

int available_cpus() {
  const int cpus = affinity_cpus();
  const double quota = std::ceil(cgroup_cpu_quota());
  return quota < cpus ? std::max(1, static_cast<int>(quota)) : cpus;
}

}  // namespace tessera
