// What backward ranges link to: the spans of their forward ranges. `sinks/chrome/encoder.py` says
// what belongs to what.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "columns/column_view.hpp"
#include "model/events.hpp"
#include "model/numbers.hpp"
#include "stage/planned_rows.hpp"

namespace recfn::stage {

// The forward ranges that backward ones may belong to. Of: what whoever asks remembers of a range.
// A thread's sequence numbers count up: each has a place of its own until all are taken, then those
// of the oldest ones.
template <typename Of>
class ForwardRanges {
 public:
  static constexpr size_t kMost = 1 << 18;  // several steps of a large model

  struct Forward {
    uint64_t key;  // its thread's id and its sequence number, laid out as an event id
    uint64_t event_id;
    int64_t start_ns;
    Of of;
  };

  // Remembers the forward ranges among so many rows, and tells `found(at, range)` of those of its
  // backward ranges.
  template <typename RowAt, typename OfRow, typename Found>
  void link(const BatchRows& rows, const ColumnView<uint64_t>& threads, size_t count, RowAt row_at,
            OfRow of_row, Found found) {
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
      const Forward* const range =
          match(key_of(rows.forward_thread_id[row], rows.sequence_nr[row]));
      if (range != nullptr) found(at, *range);
    }
  }

 private:
  // In place of another one, unless that has the same key and started later.
  void remember(const Forward& range) {
    while (place_of(range.key).event_id != 0 && place_of(range.key).key != range.key &&
           ranges_.size() < kMost)
      grow();
    Forward& place = place_of(range.key);
    if (place.key != range.key || range.start_ns >= place.start_ns) place = range;
  }

  // For a backward range. Null where none is known.
  const Forward* match(uint64_t key) {
    const Forward& range = place_of(key);
    return range.event_id != 0 && range.key == key ? &range : nullptr;
  }

  static uint64_t key_of(uint64_t thread_id, int64_t sequence_nr) {
    return thread_id << kOrdinalBits | static_cast<uint64_t>(sequence_nr);
  }

  Forward& place_of(uint64_t key) {
    return ranges_[(scrambled(key >> kOrdinalBits) + key) & (ranges_.size() - 1)];
  }

  void grow() {
    std::vector<Forward> before(2 * ranges_.size());
    ranges_.swap(before);
    for (const Forward& range : before) {
      if (range.event_id != 0) place_of(range.key) = range;
    }
  }

  std::vector<Forward> ranges_ = std::vector<Forward>(64);
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

  bool has(uint64_t event_id) const {
    return newer_.count(event_id) != 0 || older_.count(event_id) != 0;
  }

 private:
  static constexpr size_t kMostOfATable = 1 << 16;

  std::unordered_set<uint64_t> newer_, older_;
};

class LinkedSpans {
 public:
  // Of the rows that become spans, where `first_row` is the number of the first one.
  void add(const ToAdd& batch, const PlannedRows& planned, int64_t first_row) {
    const auto row_at = [&](size_t at) { return static_cast<Py_ssize_t>(planned.row[at]); };
    const auto above = [&](size_t at) {
      return planned.units[static_cast<size_t>(planned.unit[at])].above;
    };
    forward_.link(
        batch.rows, batch.known.threads, planned.row.size(), row_at, above,
        [&](size_t at, const auto& forward) {
          links_.push_back({first_row + static_cast<int64_t>(at), forward.event_id, forward.of});
        });
    if (links_.size() > kMost) links_.erase(links_.begin(), links_.end() - kMost / 2);
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
  static constexpr size_t kMost =
      1 << 18;  // after which the older half is forgotten: its units have long been decided in part

  ForwardRanges<SpanAbove> forward_;
  std::vector<RowLink> links_;  // by row
  SentRanges sent_;
};

}  // namespace recfn::stage
