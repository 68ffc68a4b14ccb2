// Ticks: the cheapest clock that never runs backward, read twice per range.
#pragma once
#include <ctime>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace recfn {

inline uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

inline uint64_t unix_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

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

inline uint64_t read_ticks(bool use_cycle_counter) {
  return __builtin_expect(use_cycle_counter, 1) ? cycle_counter() : monotonic_ns();
}

}  // namespace recfn
