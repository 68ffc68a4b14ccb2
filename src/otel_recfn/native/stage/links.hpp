// What spans of backward ranges link to. Which forward range a backward one belongs to is found as
// it comes (`forward_ranges.hpp`); the span to link to only when its unit is decided, as it isn't
// known before which ranges have one:
//
//     the forward range is             the link leads to
//     ------------------------------   ---------------------------------------------------
//     sent, with any unit              its span
//     folded, in the same unit         the nearest span around it: a sum, or a range's
//     folded before, or with another   the span above its unit
//
// but never to the parent of the span that links.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/events.hpp"
#include "model/numbers.hpp"
#include "stage/forward_ranges.hpp"
#include "stage/planned_rows.hpp"
#include "stage/range.hpp"

namespace recfn::stage {

// The link of a row to its forward range.
struct RowLink {
  int64_t row;        // the number of the row
  uint64_t event_id;  // of the forward range
  // If that was folded: the event id that the id of the nearest span around it is made of; 0: none.
  uint64_t folded_into;
  ParentSpan parent_span;  // the span above its unit
};

// The id of a parent span: that of the range with an event id, or (0) the span above the unit. No
// span links to its own parent: of two references to one span Jaeger keeps the link alone, and
// takes the span's time for the parent's.
inline uint64_t parent_span_id(uint64_t event_id, const ParentSpan& parent_span, uint64_t key) {
  return event_id == 0 ? parent_span.span_id : span_id_of(event_id, key);
}

// The spans of ranges that became spans, by the ranges' event ids: of the newest of them. A
// backward node and the range around it are found by both ids, because later children say either.
class SentRanges {
 public:
  void add(const Range& range) {
    add(range.event_id, span_event_id(range));
    if (has_node(range)) add(node_id(range), span_event_id(range));
  }

  // The event id that the id of a range's span is made of; 0 if it has none, or had it long ago.
  uint64_t sent_span(uint64_t event_id) const {
    auto found = newer_.find(event_id);
    if (found != newer_.end()) return found->second;
    found = older_.find(event_id);
    return found != older_.end() ? found->second : 0;
  }

 private:
  // Two tables of them take some 5 MB. What comes after so many others were sent is hardly ever a
  // child or backward of one: its step is over.
  static constexpr size_t kMaxTableSize = 1 << 16;

  void add(uint64_t event_id, uint64_t span) {
    if (newer_.size() >= kMaxTableSize) older_ = std::exchange(newer_, {});
    newer_[event_id] = span;
  }

  std::unordered_map<uint64_t, uint64_t> newer_, older_;
};

class LinkedSpans {
 public:
  // Of the rows that become spans, where `first_row` is the number of the first one.
  void add(const ToAdd& batch, const PlannedRows& planned, int64_t first_row) {
    const auto row_at = [&](size_t i) { return static_cast<Py_ssize_t>(planned.row[i]); };
    const auto parent_span = [&](size_t i) {
      return planned.units[static_cast<size_t>(planned.unit[i])].parent_span;
    };
    forward_.link(batch.rows, batch.known.threads, planned.row.size(), row_at, parent_span,
                  [&](size_t i, const auto& forward) {
                    links_.push_back(
                        {first_row + static_cast<int64_t>(i), forward.event_id, 0, forward.label});
                  });
    if (links_.size() > kMaxLinks) links_.erase(links_.begin(), links_.end() - kMaxLinks / 2);
  }

  // All of them, by row, which are forgotten.
  std::vector<RowLink> take() { return std::exchange(links_, {}); }

  // Null where the row links to nothing.
  RowLink* find(int64_t row) {
    const auto is_before = [](const RowLink& one, int64_t number) { return one.row < number; };
    const auto found = std::lower_bound(links_.begin(), links_.end(), row, is_before);
    return found != links_.end() && found->row == row ? &*found : nullptr;
  }

  SentRanges& sent() { return sent_; }

  // The span that a link leads to: that of the forward range, or the nearest sent one around it.
  uint64_t span_id(const RowLink& link, uint64_t key) const {
    const uint64_t sent = sent_.sent_span(link.event_id);
    const uint64_t event_id = sent != 0 ? sent : link.folded_into;
    return event_id != 0 ? span_id_of(event_id, key) : link.parent_span.span_id;
  }

 private:
  // After which the older half is forgotten: its units have long been decided in part.
  static constexpr size_t kMaxLinks = 1 << 18;

  ForwardRanges<ParentSpan> forward_;
  std::vector<RowLink> links_;  // by row
  SentRanges sent_;
};

}  // namespace recfn::stage
