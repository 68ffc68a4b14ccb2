// What spans link to: a backward range to the span that tells of its forward range.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "stage/forward_ranges.hpp"
#include "stage/id_table.hpp"
#include "stage/planned_rows.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

// A row's link. Until its forward range is told by a span it leads to the one above that.
struct RowLink {
  int64_t row;  // the number of the row
  uint64_t event_id;
  SpanAbove above;
};

// The spans that tell of ranges, by the ranges' event ids: of the newest of them.
class TellingSpans {
 public:
  void add(uint64_t event_id, uint64_t span_id);
  // 0 where none is known.
  uint64_t find(uint64_t event_id);

 private:
  using Table = IdTable<OfId<uint64_t>>;
  static constexpr size_t kMostOfATable = 1 << 16;

  Table newer_, older_;
};

class LinkedSpans {
 public:
  // Of the rows that become spans, where `first_row` is the number of the first one.
  void add(const ToAdd& batch, const PlannedRows& planned, int64_t first_row);
  // Links of the rows that aren't in `kept`, which ascends, are forgotten, if there are many.
  bool has_many() const { return links_.size() >= most_; }
  void keep(const std::vector<int64_t>& kept);

  // All of them, by row, which are forgotten.
  std::vector<RowLink> take() { return std::exchange(links_, {}); }
  // Null where the row links to nothing.
  const RowLink* find(int64_t row) const;
  TellingSpans& telling() { return telling_; }

 private:
  static constexpr size_t kToSpare = 1 << 15;

  ForwardRanges<SpanAbove> forward_;
  std::vector<RowLink> links_;  // by row
  size_t most_ = kToSpare;
  TellingSpans telling_;
};

}  // namespace recfn::stage
