// How many durations have so many binary digits.
#pragma once
#include <algorithm>
#include <cstdint>

#include "stage/pool.hpp"
#include "stage/range.hpp"

namespace recfn::stage {

// The binary digits of a number, without its sign.
inline unsigned digits_of(int64_t number) {
  const auto plain = static_cast<uint64_t>(number);
  const uint64_t size = number < 0 ? 0 - plain : plain;
  return size == 0 ? 0 : 64 - static_cast<unsigned>(__builtin_clzll(size));
}

// Counts of a few neighbouring numbers of digits.
struct Window {
  static constexpr unsigned kSize = 7;
  static constexpr unsigned kBelowFirst = 3;  // so many smaller ones stand before the one that it is made for

  Window* next;
  uint32_t counts[kSize];  // a unit has fewer rows
  uint8_t from;

  static unsigned from_for(unsigned digits) { return std::max(digits, kBelowFirst) - kBelowFirst; }

  void clear(unsigned first) {
    next = nullptr, from = static_cast<uint8_t>(first);
    std::fill(counts, counts + kSize, 0);
  }
  bool has(unsigned digits) const { return digits - from < kSize; }
};

// Durations of a path mostly are alike: the histogram itself is one window, and so is small.
class Histogram {
 public:
  // For durations of about so many digits.
  void clear(unsigned digits) { first_.clear(Window::from_for(digits)); }
  // For durations as another one has.
  void clear(const Histogram& other) { first_.clear(other.first_.from); }

  void add(unsigned digits, Pool<Window>& windows) {
    if (digits < kDigits) add(digits, 1, Window::from_for(digits), windows);  // there is no column for more
  }

  void add(const Histogram& other, Pool<Window>& windows) {
    for (const Window* each = &other.first_; each != nullptr; each = each->next) {
      for (unsigned at = 0; at < Window::kSize; ++at) {
        if (each->counts[at] != 0) add(each->from + at, each->counts[at], each->from, windows);
      }
    }
  }

  void give_back_windows(Pool<Window>& windows) {
    for (Window* next; first_.next != nullptr; first_.next = next) {
      next = first_.next->next;
      windows.give_back(first_.next);
    }
  }

  // From the fewest to the most digits that have a count. Returns the fewest.
  template <typename Visit>
  unsigned each(Visit visit) const {
    unsigned first = kDigits, last = 0;
    for (const Window* each = &first_; each != nullptr; each = each->next) {
      for (unsigned at = 0; at < Window::kSize; ++at) {
        if (each->counts[at] != 0) first = std::min(first, each->from + at), last = std::max(last, each->from + at);
      }
    }
    for (unsigned digits = first; digits <= last; ++digits) visit(count(digits));
    return first == kDigits ? 0 : first;
  }

 private:
  // Where no window has these digits, one that begins with `from` is added.
  void add(unsigned digits, uint32_t count, unsigned from, Pool<Window>& windows) {
    Window* window = &first_;
    while (!window->has(digits)) {
      if (window->next == nullptr) window->next = windows.take(), window->next->clear(from);
      window = window->next;
    }
    window->counts[digits - window->from] += count;
  }

  uint32_t count(unsigned digits) const {
    const Window* window = &first_;
    while (window != nullptr && !window->has(digits)) window = window->next;
    return window == nullptr ? 0 : window->counts[digits - window->from];
  }

  Window first_;
};

}  // namespace recfn::stage
