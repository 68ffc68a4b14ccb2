// How long the program's spans inside ranges took: the ranges in such a span are of another unit,
// and yet their time is none of the range's own that is around the span.
//
//     range      |-----------------------|     own time: without both ranges below
//     spans         |-----|    |----|          of the program's
//     ranges         |---|      |--|           in other units
//
// Those in a span come first, as they end first: their times wait for the range around.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "model/events.hpp"
#include "model/numbers.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

class SpansInside {
 public:
  // Notes the ranges of a batch that lie directly in such spans, in the thread of the range around.
  void note(const BatchRows& rows) {
    for (Py_ssize_t row = 0; row < rows.size(); ++row) {
      const uint64_t enclosing = rows.parent[row];
      if (enclosing == 0 || !rows.is_outermost(row) || rows.kind[row] != kRangeRow) continue;
      const bool is_in_its_time = (rows.flags[row] & kOverlapping) == 0 &&
                                  enclosing >> kOrdinalBits == rows.event_id[row] >> kOrdinalBits;
      if (!is_in_its_time) continue;
      if (times_ns_.size() >= kMaxTimes) times_ns_.clear();  // of ranges that never come
      int64_t& time_ns = times_ns_[enclosing];
      time_ns = wrapped_sum(time_ns, wrapped_difference(rows.end_ns[row], rows.start_ns[row]));
      newest_ = std::max(newest_, enclosing);
    }
  }

  // Of those inside a range that comes now.
  int64_t duration_ns(uint64_t event_id) const {
    if (times_ns_.empty() || event_id > newest_) return 0;
    const auto found = times_ns_.find(event_id);
    return found == times_ns_.end() ? 0 : found->second;
  }

  // Forgets the ranges that have come.
  void forget(const BatchRows& rows) {
    for (Py_ssize_t row = 0; row < rows.size() && !times_ns_.empty(); ++row) {
      if (rows.event_id[row] <= newest_) times_ns_.erase(rows.event_id[row]);
    }
    if (times_ns_.empty()) newest_ = 0;
  }

 private:
  static constexpr size_t kMaxTimes = 1 << 16;

  std::unordered_map<uint64_t, int64_t> times_ns_;  // by event id of the range around
  uint64_t newest_ = 0;                             // the largest of these
};

}  // namespace recfn::stage
