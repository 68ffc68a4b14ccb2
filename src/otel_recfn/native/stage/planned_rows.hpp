// Which rows of a batch become spans, in which order, and in which unit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/unfilled.hpp"
#include "stage/open_units.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

// What a batch tells of one unit: a row of a table for Python.
struct UnitInBatch {
  SpanAbove above;
  uint64_t root;    // an outermost range below it that has no span around it; 0: `context` has the span above
  int64_t context;  // the first of these in the batch; -1: `root` says what is above
  int64_t begun, rows, first_ns, last_ns, outermost, failed;
};

// All that a batch tells, and the rows that become spans: columns.
class PlannedRows {
 public:
  PlannedRows(const ToAdd& batch, OpenUnits& open_units)
      : rows_(batch.rows), announced_(batch.announced), known_(batch.known), in_order_(batch.in_order), open_units_(open_units),
        of_context_(batch.known.contexts.size(), kNone) {}

  void plan();

  UnfilledVector<int64_t> row;
  UnfilledVector<uint64_t> parent;  // the event id of the range that its span is a child of; 0: of the span above
  UnfilledVector<int64_t> unit;     // index into `units`
  std::vector<UnitInBatch> units;
  std::vector<OpenUnit*> open;  // the same units
  std::vector<int64_t> fates = std::vector<int64_t>(kFates);  // how many rows have each

 private:
  static constexpr uint32_t kNone = OpenUnit::kNone;

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
  const bool in_order_;
  OpenUnits& open_units_;
  size_t planned_ = 0;  // rows, until now
  std::vector<uint32_t> of_context_;
  uint64_t last_root_ = 0;  // rows of one mostly stand together
  uint32_t of_last_root_ = kNone;
};

}  // namespace recfn::stage
