// How long each thread of the process has worked since its CPU clock was read before.
//
// A clock is read by the thread's number in the kernel, so that one that has ended meanwhile has
// none. Linux only: elsewhere nothing is known.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <dirent.h>
#endif

namespace recfn {

class ThreadClocks {
 public:
  static constexpr int64_t kUnknown = -1;

  // A thread, between the last two times that clocks were read.
  struct Clock {
    uint64_t native_id;
    int64_t cpu_ns = kUnknown;       // in all
    int64_t worked_ns = kUnknown;    // between the two
    int64_t coreless_ns = kUnknown;  // for how long it waited for a core, in all
    int64_t coreless_read_ns = 0;    // when that was read
  };

  // Reads all clocks.
  void read() {
    const int64_t now_ns = monotonic_ns();
    if (now_ns - listed_ns_ >= kListedNs) list(now_ns);
    before_ns_ = read_ns_;
    read_ns_ = now_ns;
    for (Clock& clock : clocks_) {
      const int64_t cpu_ns = cpu_ns_of(clock.native_id);
      const bool is_known = cpu_ns != kUnknown && clock.cpu_ns != kUnknown;
      clock.worked_ns = is_known ? cpu_ns - clock.cpu_ns : kUnknown;
      clock.cpu_ns = cpu_ns;
    }
  }

  // The time between the last two times.
  int64_t interval_ns() const { return read_ns_ - before_ns_; }

  // Null if the thread isn't known.
  Clock* find(uint64_t native_id) {
    const auto is_it = [native_id](const Clock& clock) { return clock.native_id == native_id; };
    const auto found = std::find_if(clocks_.begin(), clocks_.end(), is_it);
    return found == clocks_.end() ? nullptr : &*found;
  }

  const std::vector<Clock>& clocks() const { return clocks_; }

  // For how long a thread waited for a core between the two times; unknown if that wasn't read at
  // the first of them.
  int64_t coreless_ns(Clock& clock) const {
    const int64_t waited_ns = coreless_ns_of(clock.native_id);
    const bool was_read = clock.coreless_read_ns == before_ns_ && clock.coreless_ns != kUnknown;
    const bool is_known = was_read && waited_ns != kUnknown;
    const int64_t found_ns = is_known ? waited_ns - clock.coreless_ns : kUnknown;
    clock.coreless_ns = waited_ns;
    clock.coreless_read_ns = read_ns_;
    return found_ns;
  }

 private:
  static constexpr int64_t kListedNs = 1'000'000'000;  // new threads are found each second

  static int64_t monotonic_ns() { return time_ns(CLOCK_MONOTONIC); }

  static int64_t time_ns(clockid_t clock) {
    timespec time{};
    if (clock_gettime(clock, &time) != 0) return kUnknown;
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }

#if defined(__linux__)
  // The kernel's number of a thread's clock (`include/linux/posix-timers.h`).
  static int64_t cpu_ns_of(uint64_t native_id) {
    constexpr clockid_t kPerThreadScheduled = 6;
    return time_ns((~static_cast<clockid_t>(native_id)) * 8 | kPerThreadScheduled);
  }

  static int64_t coreless_ns_of(uint64_t native_id) {
    const std::string path = "/proc/self/task/" + std::to_string(native_id) + "/schedstat";
    std::FILE* const file = std::fopen(path.c_str(), "re");
    if (file == nullptr) return kUnknown;
    long long ran_ns, waited_ns;
    const int found = std::fscanf(file, "%lld %lld", &ran_ns, &waited_ns);
    std::fclose(file);
    return found == 2 ? waited_ns : kUnknown;
  }

  void list(int64_t now_ns) {
    listed_ns_ = now_ns;
    DIR* const folder = opendir("/proc/self/task");
    if (folder == nullptr) return;
    std::vector<Clock> listed;
    while (const dirent* const entry = readdir(folder)) {
      const uint64_t native_id = std::strtoull(entry->d_name, nullptr, 10);
      if (native_id == 0) continue;
      const Clock* const known = find(native_id);
      listed.push_back(known != nullptr ? *known : Clock{native_id});
    }
    closedir(folder);
    clocks_ = std::move(listed);
  }
#else
  static int64_t cpu_ns_of(uint64_t) { return kUnknown; }
  static int64_t coreless_ns_of(uint64_t) { return kUnknown; }
  void list(int64_t now_ns) { listed_ns_ = now_ns; }
#endif

  std::vector<Clock> clocks_;
  int64_t listed_ns_ = -kListedNs, read_ns_ = 0, before_ns_ = 0;
};

}  // namespace recfn
