// Which rows of a batch become spans, in which order, and in which unit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "fold/range.hpp"
#include "memory/unfilled.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

// The numbers of the units that are open, by the span above each.
class UnitNumbers {
 public:
  uint32_t number(const SpanAbove& above) {
    const auto [place, is_new] = numbers_.try_emplace(above, given_ + 1);
    given_ += is_new ? 1 : 0;
    return place->second;
  }
  void forget(const SpanAbove& above) { numbers_.erase(above); }

 private:
  struct Hash {
    // Scrambled, since a root's span id may be a part of its trace id.
    size_t operator()(const SpanAbove& above) const { return folding::scrambled(above.span_id) ^ above.trace_low; }
  };

  std::unordered_map<SpanAbove, uint32_t, Hash> numbers_;
  uint32_t given_ = 0;
};

// What a batch tells of one unit: a row of a table for Python.
struct UnitInBatch {
  SpanAbove above;
  uint64_t root;    // an outermost range below it that has no span around it; 0: `context` has the span above
  int64_t context;  // the first of these in the batch; -1: `root` says what is above
  int64_t begun, rows, first_ns, last_ns, outermost, failed;
  uint32_t number;
};

// All that a batch tells, and the rows that become spans: columns.
class PlannedRows {
 public:
  PlannedRows(const BatchRows& rows, const AnnouncedRows& announced, const Surroundings& known, UnitNumbers& numbers)
      : rows_(rows), announced_(announced), known_(known), numbers_(numbers), of_context_(known.contexts.size(), kNone) {}

  // `in_order`: they stand in the order in which they ended, or are to be taken as they stand.
  void plan(bool in_order);

  UnfilledVector<int64_t> row;
  UnfilledVector<uint64_t> parent;  // the event id of the range that its span is a child of; 0: of the span above
  UnfilledVector<int64_t> unit;     // index into `units`
  std::vector<UnitInBatch> units;
  std::vector<int64_t> fates = std::vector<int64_t>(kFates);  // how many rows have each

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  void count_begun();
  bool cross() const;
  UnfilledVector<int64_t> order_of_ends() const;
  Fate fate_of(Py_ssize_t at, uint32_t* unit);
  void add(Py_ssize_t at, uint32_t unit);
  uint32_t unit_of_context(uint32_t context);
  uint32_t unit_of_root(uint64_t root);
  uint32_t unit_below(const SpanAbove& above, int64_t context, uint64_t root);

  const BatchRows& rows_;
  const AnnouncedRows& announced_;
  const Surroundings& known_;
  UnitNumbers& numbers_;
  std::vector<uint32_t> of_context_;
  std::unordered_map<uint32_t, uint32_t> of_number_;
  uint64_t last_root_ = 0;  // rows of one mostly stand together
  uint32_t of_last_root_ = kNone;
};

}  // namespace recfn::stage
