// What backward ranges link to: the spans that tell of their forward ranges. `sinks/chrome/encoder.py` says what belongs to what.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "columns/column_view.hpp"
#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "stage/containers.hpp"
#include "stage/planned_rows.hpp"

namespace recfn::stage {

// The forward ranges that backward ones may belong to. Of: what whoever asks remembers of a range. Beyond `most` ranges, or
// `most_matched` of those that a backward range belongs to, the quarter that started first is forgotten.
template <typename Of>
class ForwardRanges {
 public:
  static constexpr size_t kMost = 1'000'000;       // that wait for a backward: many steps of a large model
  static constexpr size_t kMostMatched = 1 << 16;  // for another backward through the same graph, which few programs have

  struct Range {
    uint64_t key;  // its thread's id and its sequence number, laid out as an event id
    uint64_t event_id;
    int64_t start_ns;
    Of of;
    bool matched;
  };

  explicit ForwardRanges(size_t most = kMost, size_t most_matched = kMostMatched) : most_(most), most_matched_(most_matched) {}

  // Remembers the forward ranges among so many rows, and tells `found(at, range)` of those of its backward ranges.
  template <typename RowAt, typename OfRow, typename Found>
  void link(const BatchRows& rows, const ColumnView<uint64_t>& threads, size_t count, RowAt row_at, OfRow of_row, Found found) {
    bool any_backward = false;
    for (size_t at = 0; at < count; ++at) {
      const Py_ssize_t row = row_at(at);
      any_backward |= rows.is_backward(row);
      if (!rows.is_forward(row)) continue;
      const uint64_t key = key_of(threads[rows.thread[row]], rows.sequence_nr[row]);
      remember({key, rows.event_id[row], rows.start_ns[row], of_row(at), false});
    }
    for (size_t at = 0; at < count && any_backward; ++at) {
      const Py_ssize_t row = row_at(at);
      if (!rows.is_backward(row)) continue;
      const Range* const range = match(key_of(rows.forward_thread_id[row], rows.sequence_nr[row]));
      if (range != nullptr) found(at, *range);
    }
    if (matched_ > most_matched_) forget_first(matched_ - most_matched_ / 4 * 3, true);
    if (ranges_.size() > most_) forget_first(ranges_.size() - most_ / 4 * 3, false);
  }

  size_t size() const { return ranges_.size(); }

 private:
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

  // A thread's sequence numbers count up: those of one line stand together, and mostly come one after the other.
  static constexpr unsigned kLineBits = 3;
  using Line = std::array<uint32_t, size_t{1} << kLineBits>;  // places in `ranges_` from 1 on; 0: no range

  static uint64_t key_of(uint64_t thread_id, int64_t sequence_nr) {
    return thread_id << kOrdinalBits | static_cast<uint64_t>(sequence_nr);
  }
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
  size_t most_, most_matched_;
  std::unordered_map<uint64_t, Line> lines_;
  uint64_t last_ = 0;  // the line that was found last, if any was
  Line* last_line_ = nullptr;
};

// A row's link. Until its forward range is told by a span it leads to the one above that.
struct RowLink {
  int64_t row;  // the number of the row
  uint64_t event_id;
  SpanAbove above;
};

// The spans that tell of ranges, by the ranges' event ids: of the newest of them.
class TellingSpans {
 public:
  void add(uint64_t event_id, uint64_t span_id) {
    if (event_id == 0) return;
    if (OfId<uint64_t>* const known = newer_.find(event_id)) {
      known->value = span_id;
      return;
    }
    if (newer_.size() >= kMostOfATable) older_ = std::exchange(newer_, {});
    newer_.insert({event_id, span_id});
  }

  // 0 where none is known.
  uint64_t find(uint64_t event_id) {
    const OfId<uint64_t>* found = newer_.find(event_id);
    if (found == nullptr) found = older_.find(event_id);
    return found == nullptr ? 0 : found->value;
  }

 private:
  using Table = IdTable<OfId<uint64_t>>;
  static constexpr size_t kMostOfATable = 1 << 16;

  Table newer_, older_;
};

class LinkedSpans {
 public:
  // Of the rows that become spans, where `first_row` is the number of the first one.
  void add(const ToAdd& batch, const PlannedRows& planned, int64_t first_row) {
    const auto row_at = [&](size_t at) { return static_cast<Py_ssize_t>(planned.row[at]); };
    const auto above = [&](size_t at) { return planned.units[static_cast<size_t>(planned.unit[at])].above; };
    forward_.link(batch.rows, batch.known.threads, planned.row.size(), row_at, above, [&](size_t at, const auto& forward) {
      links_.push_back({first_row + static_cast<int64_t>(at), forward.event_id, forward.of});
    });
  }

  // Links of the rows that aren't in `kept`, which ascends, are forgotten, if there are many.
  bool has_many() const { return links_.size() >= most_; }

  void keep(const std::vector<int64_t>& kept) {
    auto next = kept.begin();
    const auto is_gone = [&](const RowLink& link) {
      while (next != kept.end() && *next < link.row) ++next;
      return next == kept.end() || *next != link.row;
    };
    links_.erase(std::remove_if(links_.begin(), links_.end(), is_gone), links_.end());
    most_ = 2 * links_.size() + kToSpare;
  }

  // All of them, by row, which are forgotten.
  std::vector<RowLink> take() { return std::exchange(links_, {}); }

  // Null where the row links to nothing.
  const RowLink* find(int64_t row) const {
    const auto is_before = [](const RowLink& one, int64_t number) { return one.row < number; };
    const auto found = std::lower_bound(links_.begin(), links_.end(), row, is_before);
    return found != links_.end() && found->row == row ? &*found : nullptr;
  }

  TellingSpans& telling() { return telling_; }

 private:
  static constexpr size_t kToSpare = 1 << 15;

  ForwardRanges<SpanAbove> forward_;
  std::vector<RowLink> links_;  // by row
  size_t most_ = kToSpare;
  TellingSpans telling_;
};

}  // namespace recfn::stage
