// What folding needs to know of a range that has ended, and how ranges rank. `tests/models/folding.py` has the same numbers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "model/wrapping.hpp"

namespace recfn::stage {

constexpr uint32_t kPathsOfASpan = 128;
constexpr uint32_t kPathsOfAUnit = 1024;
constexpr size_t kMaxAwaited = 1 << 16;
constexpr int64_t kForced = int64_t{1} << 62;      // ranks above every duration
constexpr int64_t kFailed = int64_t{1} << 61;      // is added to the duration of a range that failed; others are shorter
constexpr uint32_t kLinkable = uint32_t{1} << 31;  // a flag of a row, beside those of EventFlag
constexpr uint32_t kOther = 0;                     // the number of the name for what no path was left for
constexpr unsigned kDigits = 64;

// Times in nanoseconds.
struct Range {
  uint64_t event_id, parent;
  int64_t start_ns, duration_ns;
  uint32_t name, flags;
  int64_t row;  // its number, as the caller counts
};

using Ranges = UnfilledVector<Range>;

struct Rank {
  int64_t duration;  // or `kForced`, or of one that failed `kFailed` and more
  uint64_t first;  // an event id: of equal durations the earlier one ranks higher
  int64_t height;
};
constexpr Rank kNothing{-1, 0, 0};  // ranks below all

inline bool ranks_below(const Rank& one, const Rank& other) {
  if (one.duration != other.duration) return one.duration < other.duration;
  if (one.first != other.first) return one.first > other.first;
  return one.height < other.height;
}

// Without what else lies in it.
inline bool ranks_above_in_it(const Range& around, const Range& one) {
  if (around.duration_ns != one.duration_ns) return around.duration_ns > one.duration_ns;
  return around.event_id < one.event_id;
}

inline uint64_t scrambled(uint64_t number) {
  number *= 0x9E3779B97F4A7C15u;
  return number ^ number >> 32;
}

}  // namespace recfn::stage
