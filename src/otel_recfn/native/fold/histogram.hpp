// How many durations have so many binary digits. Only those from the fewest to the most that there were are filled.
#pragma once
#include <cstdint>

#include "fold/range.hpp"

namespace recfn::folding {

// The binary digits of a number, without its sign.
inline unsigned digits_of(int64_t number) {
  const auto plain = static_cast<uint64_t>(number);
  const uint64_t size = number < 0 ? 0 - plain : plain;
  return size == 0 ? 0 : 64 - static_cast<unsigned>(__builtin_clzll(size));
}

// Counts near those of the first duration stand first, so that those of a path with like durations are in few cache lines.
class Histogram {
 public:
  void clear() { from_ = to_ = 0; }

  void add(unsigned digits, uint32_t count) {
    if (digits >= kDigits) return;  // there is no column for it
    if (digits < from_ || digits >= to_) make_room(digits);
    at(digits) += count;
  }

  void add(const Histogram& other) {
    for (unsigned digits = other.from_; digits < other.to_; ++digits) {
      if (other.at(digits) != 0) add(digits, other.at(digits));
    }
  }

  // Of how many binary digits the first is that has a count.
  unsigned first_digits() const { return from_; }

  // From that one to the last that has a count.
  template <typename Visit>
  void each(Visit visit) const {
    for (unsigned digits = from_; digits < to_; ++digits) visit(at(digits));
  }

 private:
  static constexpr unsigned kBelowFirst = 3;  // so many smaller ones stand before the first one's

  uint32_t& at(unsigned digits) { return counts_[(digits - base_) % kDigits]; }
  uint32_t at(unsigned digits) const { return counts_[(digits - base_) % kDigits]; }

  void make_room(unsigned digits) {
    if (from_ == to_) {
      from_ = to_ = static_cast<uint8_t>(digits);
      base_ = static_cast<uint8_t>((digits - kBelowFirst) % kDigits);
    }
    while (digits < from_) at(--from_) = 0;
    while (digits >= to_) at(to_++) = 0;
  }

  uint8_t from_ = 0, to_ = 0;  // what is filled
  uint8_t base_ = 0;           // the digits of the first count
  uint32_t counts_[kDigits];   // a unit has fewer rows
};

}  // namespace recfn::folding
