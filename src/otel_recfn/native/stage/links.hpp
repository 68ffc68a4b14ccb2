// What backward ranges link to: the spans of their forward ranges. `sinks/chrome/encoder.py` says what belongs to what.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "columns/column_view.hpp"
#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "stage/planned_rows.hpp"

namespace recfn::stage {

// The forward ranges that backward ones may belong to. Of: what whoever asks remembers of a range. Beyond `kMost` ranges
// the quarter that started first is forgotten.
template <typename Of>
class ForwardRanges {
 public:
  static constexpr size_t kMost = 1 << 18;  // several steps of a large model

  struct Range {
    uint64_t key;  // its thread's id and its sequence number, laid out as an event id
    uint64_t event_id;
    int64_t start_ns;
    Of of;
  };

  // Remembers the forward ranges among so many rows, and tells `found(at, range)` of those of its backward ranges.
  template <typename RowAt, typename OfRow, typename Found>
  void link(const BatchRows& rows, const ColumnView<uint64_t>& threads, size_t count, RowAt row_at, OfRow of_row, Found found) {
    bool any_backward = false;
    for (size_t at = 0; at < count; ++at) {
      const Py_ssize_t row = row_at(at);
      any_backward |= rows.is_backward(row);
      if (!rows.is_forward(row)) continue;
      const uint64_t key = key_of(threads[rows.thread[row]], rows.sequence_nr[row]);
      remember({key, rows.event_id[row], rows.start_ns[row], of_row(at)});
    }
    for (size_t at = 0; at < count && any_backward; ++at) {
      const Py_ssize_t row = row_at(at);
      if (!rows.is_backward(row)) continue;
      const Range* const range = match(key_of(rows.forward_thread_id[row], rows.sequence_nr[row]));
      if (range != nullptr) found(at, *range);
    }
    if (ranges_.size() > kMost) forget_first();
  }

 private:
  // In place of one with that key, unless this one started earlier.
  void remember(const Range& range) {
    uint32_t& place = made_line(range.key)[slot_of(range.key)];
    if (place == 0) {
      ranges_.push_back(range);
      place = static_cast<uint32_t>(ranges_.size());
    } else if (range.start_ns >= ranges_[place - 1].start_ns) {
      ranges_[place - 1] = range;
    }
  }

  // For a backward range. Null where none is known.
  const Range* match(uint64_t key) {
    const Line* const line = find_line(key);
    const uint32_t place = line != nullptr ? (*line)[slot_of(key)] : 0;
    return place == 0 ? nullptr : &ranges_[place - 1];
  }

  // Forgets the quarter that started first.
  void forget_first() {
    std::vector<int64_t> starts(ranges_.size());
    std::transform(ranges_.begin(), ranges_.end(), starts.begin(), [](const Range& range) { return range.start_ns; });
    const auto last_gone = starts.begin() + static_cast<std::ptrdiff_t>(starts.size() / 4);
    std::nth_element(starts.begin(), last_gone, starts.end());
    ForwardRanges kept;
    for (const Range& range : ranges_) {
      if (range.start_ns > *last_gone) kept.remember(range);
    }
    ranges_.swap(kept.ranges_), lines_.swap(kept.lines_);
    last_line_ = nullptr;
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
  std::unordered_map<uint64_t, Line> lines_;
  uint64_t last_ = 0;  // the line that was found last, if any was
  Line* last_line_ = nullptr;
};

// A row's link. Where its forward range is no span, or none yet, it leads to the one above that.
struct RowLink {
  int64_t row;  // the number of the row
  uint64_t event_id;
  SpanAbove above;
};

// Event ids of ranges that became spans: of the newest of them.
class SentRanges {
 public:
  void add(uint64_t event_id) {
    if (newer_.size() >= kMostOfATable) older_ = std::exchange(newer_, {});
    newer_.insert(event_id);
  }

  bool has(uint64_t event_id) const { return newer_.count(event_id) != 0 || older_.count(event_id) != 0; }

 private:
  static constexpr size_t kMostOfATable = 1 << 16;

  std::unordered_set<uint64_t> newer_, older_;
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

  SentRanges& sent() { return sent_; }

 private:
  static constexpr size_t kToSpare = 1 << 15;

  ForwardRanges<SpanAbove> forward_;
  std::vector<RowLink> links_;  // by row
  size_t most_ = kToSpare;
  SentRanges sent_;
};

}  // namespace recfn::stage
