// The wait of the drain, which a thread that writes much ends without a lock or an allocation, by
// one system call at most.
#pragma once
#include <atomic>
#include <cstdint>
#include <ctime>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace recfn {

class DrainWaker {
 public:
  // The next wait, or the one under way, ends at once.
  void wake() {
    // Many threads may fill their rings before the drain gets a core. Only the first of them makes
    // the system call: the word is 1 until a wait has ended.
    if (woken_.exchange(1) != 0) return;
#if defined(__linux__)
    syscall(SYS_futex, &woken_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
#endif
  }

  // Whether it was woken.
  bool wait(uint64_t timeout_ns) {
#if defined(__linux__)
    const timespec timeout = as_timespec(timeout_ns);
    // The kernel compares the word with 0 itself as it puts the thread to sleep: a wake that comes
    // after this load isn't lost.
    if (woken_.load() == 0) {
      syscall(SYS_futex, &woken_, FUTEX_WAIT_PRIVATE, 0, &timeout, nullptr, 0);
    }
#else
    for (uint64_t slept = 0; slept < timeout_ns && woken_.load() == 0; slept += kSliceNs) {
      const timespec slice = as_timespec(kSliceNs);
      nanosleep(&slice, nullptr);
    }
#endif
    return woken_.exchange(0) != 0;
  }

 private:
  static constexpr uint64_t kSliceNs = 20'000'000;  // without futexes a wait is cut into polls

  static timespec as_timespec(uint64_t ns) {
    timespec time{};
    time.tv_sec = static_cast<time_t>(ns / 1'000'000'000u);
    time.tv_nsec = static_cast<long>(ns % 1'000'000'000u);
    return time;
  }

  std::atomic<uint32_t> woken_{0};
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a word");
};

}  // namespace recfn
