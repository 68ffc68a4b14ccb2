// The forward ranges that backward ones may belong to. Python's `batches/links.py` says what belongs to what.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "memory/unfilled.hpp"

namespace recfn {

// Range: what is remembered of one. It has `key` (its thread's number and its sequence number, laid out as an event id),
// `start_ns`, and `matched`, false until a backward range belongs to it.
template <typename Range>
class ForwardRanges {
 public:
  // In place of one with that key, unless this one started earlier.
  void remember(const Range& range) {
    uint32_t& place = made_line(range.key)[slot_of(range.key)];
    if (place == 0) {
      ranges_.push_back(range), matched_ += range.matched;
      place = static_cast<uint32_t>(ranges_.size());
    } else if (range.start_ns >= ranges_[place - 1].start_ns) {
      matched_ = matched_ + range.matched - ranges_[place - 1].matched;
      ranges_[place - 1] = range;
    }
  }

  // For a backward range. Null where none is known.
  const Range* match(uint64_t key) {
    const Line* const line = find_line(key);
    const uint32_t place = line != nullptr ? (*line)[slot_of(key)] : 0;
    if (place == 0) return nullptr;
    Range& range = ranges_[place - 1];
    matched_ += !range.matched, range.matched = true;
    return &range;
  }

  // Forgets so many, those that started first; only matched ones, if it is said.
  void forget_first(size_t count, bool only_matched) {
    std::vector<uint32_t> places;  // of what may be forgotten
    for (uint32_t place = 0; place < ranges_.size(); ++place) {
      if (ranges_[place].matched || !only_matched) places.push_back(place);
    }
    const auto last = places.begin() + static_cast<std::ptrdiff_t>(std::min(count, places.size()));
    const auto started_earlier = [this](uint32_t one, uint32_t other) { return ranges_[one].start_ns < ranges_[other].start_ns; };
    std::nth_element(places.begin(), last, places.end(), started_earlier);
    std::vector<uint8_t> gone(ranges_.size());
    for (auto place = places.begin(); place != last; ++place) gone[*place] = 1;
    ForwardRanges kept;
    kept.ranges_.reserve(ranges_.size() - static_cast<size_t>(last - places.begin()));
    for (size_t place = 0; place < ranges_.size(); ++place) {
      if (gone[place] == 0) kept.remember(ranges_[place]);
    }
    ranges_.swap(kept.ranges_), lines_.swap(kept.lines_);
    matched_ = kept.matched_, last_line_ = nullptr;
  }

  size_t size() const { return ranges_.size(); }
  size_t matched() const { return matched_; }
  UnfilledVector<Range>& all() { return ranges_; }

 private:
  // A thread's sequence numbers count up: those of one line stand together, and mostly come one after the other.
  static constexpr unsigned kLineBits = 3;
  using Line = std::array<uint32_t, size_t{1} << kLineBits>;  // places in `ranges_` from 1 on; 0: no range

  static size_t slot_of(uint64_t key) { return key & ((size_t{1} << kLineBits) - 1); }

  Line* find_line(uint64_t key) {
    const uint64_t number = key >> kLineBits;
    if (last_line_ != nullptr && number == last_) return last_line_;
    const auto found = lines_.find(number);
    if (found == lines_.end()) return nullptr;
    last_ = number;
    return last_line_ = &found->second;  // it stays where it is, whatever else is added
  }

  Line& made_line(uint64_t key) {
    Line* const line = find_line(key);
    return line != nullptr ? *line : lines_[key >> kLineBits];
  }

  UnfilledVector<Range> ranges_;
  size_t matched_ = 0;  // of these
  std::unordered_map<uint64_t, Line> lines_;
  uint64_t last_ = 0;  // the line that was found last, if any was
  Line* last_line_ = nullptr;
};

}  // namespace recfn
