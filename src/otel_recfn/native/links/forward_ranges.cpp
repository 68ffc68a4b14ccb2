#include "links/forward_ranges.hpp"

#include <algorithm>
#include <numeric>

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
    ranges_.push_back(range);
    place = static_cast<uint32_t>(ranges_.size());
  } else if (range.start_ns >= ranges_[place - 1].start_ns) {
    ranges_[place - 1] = range;
  }
}

const ForwardRange* ForwardRanges::find(uint64_t key) {
  const Line* const line = find_line(key);
  const uint32_t place = line != nullptr ? (*line)[slot_of(key)] : 0;
  return place != 0 ? &ranges_[place - 1] : nullptr;
}

void ForwardRanges::keep_newest(size_t count) {
  if (count >= ranges_.size()) return;
  std::vector<uint32_t> places(ranges_.size());
  std::iota(places.begin(), places.end(), 0);
  const auto first = places.end() - static_cast<std::ptrdiff_t>(count);
  const auto started_earlier = [this](uint32_t one, uint32_t other) { return ranges_[one].start_ns < ranges_[other].start_ns; };
  std::nth_element(places.begin(), first, places.end(), started_earlier);
  ForwardRanges kept;
  kept.ranges_.reserve(count);
  for (auto place = first; place != places.end(); ++place) kept.remember(ranges_[*place]);
  ranges_.swap(kept.ranges_), lines_.swap(kept.lines_);
  last_line_ = nullptr;
}

}  // namespace recfn
