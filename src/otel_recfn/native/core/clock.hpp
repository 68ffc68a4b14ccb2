// Time: ticks while recording, monotonic nanoseconds while pairing, Unix nanoseconds everywhere
// else.
//
//     ticks --line--> CLOCK_MONOTONIC --offset--> Unix time
//
// Durations come from the monotonic clock alone. Where ticks are a cycle counter, their rate is
// measured against CLOCK_MONOTONIC every second or more, and the error of the line is corrected
// over the next second, by 500 ppm at most, or at once where a recording begins. Where ticks are
// the monotonic clock itself, the line is exact. The clock is CLOCK_MONOTONIC and not
// CLOCK_MONOTONIC_RAW, because NTP slews the former as it slews the wall clock: the two differ by a
// number that changes only when somebody sets the wall clock.
//
// That number is the offset. It is read on every drain, and holds for what is recorded from then
// on: so a moment has the same Unix time whether it is asked for at once or when the next drain
// reads its record. What begins in an open range of its thread keeps the offset of that, whatever
// the wall clock is set to meanwhile; a change of over a second is a jump, which the batch reports.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace recfn {

inline uint64_t clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

inline uint64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

// What the calling thread has worked. It is asked of the kernel, which takes 200-400 ns.
inline int64_t thread_cpu_ns() { return static_cast<int64_t>(clock_ns(CLOCK_THREAD_CPUTIME_ID)); }

// Whether the cycle counter ticks at one rate on every core, whatever they sleep or clock at.
inline bool cycle_counter_is_invariant() {
#if defined(__x86_64__)
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 && (edx & 1u << 8) != 0;
#elif defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

inline uint64_t cycle_counter() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return monotonic_ns();
#endif
}

// The cheapest clock that never runs backward, read twice per range.
inline uint64_t read_ticks(bool use_cycle_counter) {
  return __builtin_expect(use_cycle_counter, 1) ? cycle_counter() : monotonic_ns();
}

constexpr int64_t kJumpNs = 1'000'000'000;

// A moment, as a row that begins then outside of any range has it.
struct Moment {
  uint64_t ticks;
  int64_t monotonic_ns, unix_ns;
};

// All clocks at one moment.
struct Reading {
  uint64_t ticks;
  int64_t monotonic_ns, unix_ns, took_ns;
};

// Of a few tries, the one during which the least time passed.
inline Reading read_clocks(bool use_cycle_counter) {
  Reading best{0, 0, 0, INT64_MAX};
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto before = static_cast<int64_t>(monotonic_ns());
    const uint64_t cycles = use_cycle_counter ? cycle_counter() : 0;
    const auto wall = static_cast<int64_t>(clock_ns(CLOCK_REALTIME));
    const int64_t took = static_cast<int64_t>(monotonic_ns()) - before;
    const int64_t middle = before + took / 2;
    if (took < best.took_ns) {
      best = {use_cycle_counter ? cycles : static_cast<uint64_t>(middle), middle, wall, took};
    }
  }
  return best;
}

class ClockMapping {
 public:
  explicit ClockMapping(double ns_per_tick) : nominal_(ns_per_tick) {}

  // A recording begins: its line and its offset are what the clocks say now, whatever they were
  // before.
  void begin(const Reading& now) { begin_line(now, now.unix_ns - now.monotonic_ns); }

  // Returns by how much the wall clock jumped, 0 where it didn't.
  int64_t anchor(const Reading& now) {
    follow_ticks(now);
    const int64_t change = now.unix_ns - now.monotonic_ns - offset_ns();
    if (std::abs(change) > std::max(kSmallestChangeNs, now.took_ns)) {
      lines_.front().offset_ns += change;
    }
    return std::abs(change) > kJumpNs + now.took_ns ? change : 0;
  }

  // Of what was recorded since one of the last anchors: earlier records have been read.
  int64_t monotonic_ns(uint64_t ticks) const { return line_of(ticks).at(ticks); }
  int64_t offset_ns(uint64_t ticks) const { return line_of(ticks).offset_ns; }

  int64_t offset_ns() const { return lines_.front().offset_ns; }

 private:
  struct Line {
    uint64_t ticks = 0;
    int64_t monotonic_ns = 0;
    double rate = 1;
    int64_t offset_ns = 0;

    int64_t at(uint64_t at_ticks) const {
      return monotonic_ns +
             std::llrint(static_cast<double>(static_cast<int64_t>(at_ticks - ticks)) * rate);
    }
  };

  // The one that was the newest at that moment.
  const Line& line_of(uint64_t ticks) const {
    const Line* line = &lines_.front();
    while (line != &lines_.back() && ticks < line->ticks) ++line;
    return *line;
  }

  void follow_ticks(const Reading& now) {
    const Line& last = lines_.front();
    const int64_t predicted = last.at(now.ticks);
    const int64_t error = now.monotonic_ns - predicted;
    if (std::abs(error) > kJumpNs) {
      // The ticks themselves jumped: the machine slept, or moved. Slewing would take half an hour
      // for each second of it.
      return begin_line(now, last.offset_ns);
    }
    if (now.ticks <= last.ticks) return;
    measure_rate(now);
    const double elapsed_ns = static_cast<double>(now.ticks - last.ticks) * nominal_;
    const double slew = static_cast<double>(error) / std::max(elapsed_ns, kHorizonNs);
    const double rate = nominal_ * (1 + std::clamp(slew, -kMaxSlew, kMaxSlew));
    std::copy_backward(lines_.begin(), lines_.end() - 1, lines_.end());
    lines_.front() = {now.ticks, predicted, rate, offset_ns()};
  }

  void begin_line(const Reading& now, int64_t offset_ns) {
    lines_.fill({now.ticks, now.monotonic_ns, nominal_, offset_ns});
    rated_ = now;
  }

  void measure_rate(const Reading& now) {
    const auto elapsed = static_cast<double>(now.ticks - rated_.ticks);
    if (elapsed * nominal_ < kHorizonNs || now.took_ns > kPreciseNs) return;
    if (rated_.took_ns <= kPreciseNs) {
      nominal_ = static_cast<double>(now.monotonic_ns - rated_.monotonic_ns) / elapsed;
    }
    rated_ = now;
  }

  // A smaller change of the offset is an error of the reading.
  static constexpr int64_t kSmallestChangeNs = 10'000;
  // A reading during which more time passed was interrupted: no rate is measured by it.
  static constexpr int64_t kPreciseNs = 100'000;
  static constexpr double kHorizonNs = 1e9;
  static constexpr double kMaxSlew = 500e-6;
  // The newest first. What is recorded between two drains has the line of the first one. A step's
  // begin is read before its span is made and written after that, and drains may come meanwhile:
  // many where somebody flushes all the time.
  std::array<Line, 64> lines_{};
  Reading rated_{};
  double nominal_;
};

}  // namespace recfn
