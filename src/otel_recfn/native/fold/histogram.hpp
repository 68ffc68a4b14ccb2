// How many durations have so many binary digits. Most paths have durations of a few digits: only others get a count for each.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>

#include "fold/pool.hpp"
#include "fold/range.hpp"

namespace recfn::folding {

// The binary digits of a number, without its sign.
inline unsigned digits_of(int64_t number) {
  const auto plain = static_cast<uint64_t>(number);
  const uint64_t size = number < 0 ? 0 - plain : plain;
  return size == 0 ? 0 : 64 - static_cast<unsigned>(__builtin_clzll(size));
}

struct WideHistogram {
  WideHistogram* next;
  int64_t counts[kDigits];
};

class Histogram {
 public:
  void clear() { from_ = to_ = 0, wide_ = nullptr; }

  // Takes at most one of `pool`.
  void add(unsigned digits, int64_t count, Pool<WideHistogram>& pool) {
    if (digits >= kDigits) return;  // there is no column for it
    if (wide_ == nullptr && !make_room(digits)) widen(pool);
    (wide_ != nullptr ? wide_->counts[digits] : near_[digits - from_]) += count;
  }

  // The other one's counts, which it hasn't afterwards. Takes at most one of `pool`.
  void take(Histogram& other, Pool<WideHistogram>& pool) {
    if (wide_ == nullptr && other.wide_ != nullptr) std::swap(*this, other);
    const unsigned from = other.wide_ != nullptr ? 0 : other.from_, to = other.wide_ != nullptr ? kDigits : other.to_;
    for (unsigned digits = from; digits < to; ++digits) {
      const int64_t count = other.wide_ != nullptr ? other.wide_->counts[digits] : other.near_[digits - from];
      if (count != 0) add(digits, count, pool);
    }
    other.give_back(pool);
  }

  void give_back(Pool<WideHistogram>& pool) {
    if (wide_ != nullptr) pool.give_back(wide_);
    clear();
  }

  // Of how many binary digits the first is that has a count.
  unsigned first_digits() const {
    if (wide_ == nullptr) return from_;
    return static_cast<unsigned>(std::find_if(wide_->counts, wide_->counts + kDigits, is_counted) - wide_->counts);
  }

  // From that one to the last that has a count.
  template <typename Visit>
  void each(Visit visit) const {
    const int64_t *first = near_, *last = near_ + (to_ - from_);
    if (wide_ != nullptr) {
      first = wide_->counts + first_digits(), last = wide_->counts + kDigits;
      while (!is_counted(last[-1])) --last;
    }
    std::for_each(first, last, visit);
  }

 private:
  static constexpr unsigned kNear = 6;

  static bool is_counted(int64_t count) { return count != 0; }

  bool make_room(unsigned digits) {
    if (digits >= from_ && digits < to_) return true;
    if (from_ == to_) from_ = to_ = static_cast<uint8_t>(digits);
    const unsigned from = std::min<unsigned>(from_, digits), to = std::max<unsigned>(to_, digits + 1);
    if (to - from > kNear) return false;
    std::copy_backward(near_, near_ + (to_ - from_), near_ + (to_ - from));
    std::fill(near_, near_ + (from_ - from), 0);
    std::fill(near_ + (to_ - from), near_ + (to - from), 0);
    from_ = static_cast<uint8_t>(from), to_ = static_cast<uint8_t>(to);
    return true;
  }

  void widen(Pool<WideHistogram>& pool) {
    WideHistogram* wide = pool.take();
    std::fill(wide->counts, wide->counts + kDigits, 0);
    std::copy(near_, near_ + (to_ - from_), wide->counts + from_);
    wide_ = wide;
  }

  uint8_t from_ = 0, to_ = 0;  // digits that `near_` counts
  WideHistogram* wide_ = nullptr;
  int64_t near_[kNear];
};

}  // namespace recfn::folding
