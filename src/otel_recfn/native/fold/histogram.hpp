// How many durations have so many binary digits. Only those from the fewest to the most that there were are filled.
#pragma once
#include <algorithm>
#include <cstdint>

#include "fold/range.hpp"

namespace recfn::folding {

// The binary digits of a number, without its sign.
inline unsigned digits_of(int64_t number) {
  const auto plain = static_cast<uint64_t>(number);
  const uint64_t size = number < 0 ? 0 - plain : plain;
  return size == 0 ? 0 : 64 - static_cast<unsigned>(__builtin_clzll(size));
}

class Histogram {
 public:
  void clear() { from_ = to_ = 0; }

  void add(unsigned digits, uint32_t count) {
    if (digits >= kDigits) return;  // there is no column for it
    if (digits < from_ || digits >= to_) make_room(digits);
    counts_[digits] += count;
  }

  void add(const Histogram& other) {
    for (unsigned digits = other.from_; digits < other.to_; ++digits) {
      if (other.counts_[digits] != 0) add(digits, other.counts_[digits]);
    }
  }

  // Of how many binary digits the first is that has a count.
  unsigned first_digits() const { return from_; }

  // From that one to the last that has a count.
  template <typename Visit>
  void each(Visit visit) const {
    std::for_each(counts_ + from_, counts_ + to_, visit);
  }

 private:
  void make_room(unsigned digits) {
    if (from_ == to_) from_ = to_ = static_cast<uint8_t>(digits);
    if (digits < from_) {
      std::fill(counts_ + digits, counts_ + from_, 0);
      from_ = static_cast<uint8_t>(digits);
    } else {
      std::fill(counts_ + to_, counts_ + digits + 1, 0);
      to_ = static_cast<uint8_t>(digits + 1);
    }
  }

  uint8_t from_ = 0, to_ = 0;   // what is filled
  uint32_t counts_[kDigits];    // a unit has fewer rows
};

}  // namespace recfn::folding
