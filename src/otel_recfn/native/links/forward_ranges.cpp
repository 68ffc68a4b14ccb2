#include "links/forward_ranges.hpp"

#include <algorithm>

namespace recfn {

ForwardRanges::Line* ForwardRanges::find_line(uint64_t key) {
  const uint64_t number = key >> kLineBits;
  if (last_line_ != nullptr && number == last_) return last_line_;
  const auto found = lines_.find(number);
  if (found == lines_.end()) return nullptr;
  last_ = number;
  return last_line_ = &found->second;  // it stays where it is, whatever else is added
}

ForwardRanges::Line& ForwardRanges::made_line(uint64_t key) {
  Line* const line = find_line(key);
  return line != nullptr ? *line : lines_[key >> kLineBits];
}

void ForwardRanges::remember(const ForwardRange& range) {
  uint32_t& place = made_line(range.key)[slot_of(range.key)];
  if (place == 0) {
    ranges_.push_back(range), matched_ += range.matched;
    place = static_cast<uint32_t>(ranges_.size());
  } else if (range.start_ns >= ranges_[place - 1].start_ns) {
    matched_ = matched_ + range.matched - ranges_[place - 1].matched;
    ranges_[place - 1] = range;
  }
}

const ForwardRange* ForwardRanges::match(uint64_t key) {
  const Line* const line = find_line(key);
  const uint32_t place = line != nullptr ? (*line)[slot_of(key)] : 0;
  if (place == 0) return nullptr;
  ForwardRange& range = ranges_[place - 1];
  matched_ += !range.matched, range.matched = true;
  return &range;
}

void ForwardRanges::forget_first(size_t count, bool only_matched) {
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

}  // namespace recfn
