// The way of a row to the span that tells of it: planned, linked and folded as it comes, and told when its unit is decided.
//
//     batch ──► PlannedRows ─┬► LinkedSpans: what backward ranges link to
//                            └► OpenUnits: the longest ranges of each, sums of the rest ──► decide ──► UnitTeller ──► Decided
//
// For one thread at a time, without Python. Where it finds no memory, it isn't to be used any more.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns/table_view.hpp"
#include "stage/linked_spans.hpp"
#include "stage/open_units.hpp"
#include "stage/outermost.hpp"
#include "stage/planned_rows.hpp"
#include "stage/stage_rows.hpp"
#include "stage/unit_told.hpp"

namespace recfn::stage {

class Stage {
 public:
  explicit Stage(const Limits& limits) : units_(limits) {}

  // What its rows come to. They wait for the end of their units.
  PlannedRows add(const ToAdd& batch);
  // The same, but each is a span of its own.
  PlannedRows plan(const ToAdd& batch);
  // Where the rows of what was planned last lead, to spans of ranges by their event ids; none where no row leads anywhere.
  UnfilledVector<LinkRow> links_of(const PlannedRows& planned, uint64_t key, std::vector<TraceRow>& traces);

  Decided decide(const TableView<const UnitToDecide>& wanted, uint64_t key);
  // The numbers of the rows that may be kept yet, in ascending order.
  std::vector<int64_t> kept();
  // Whether the outermost range is open, in which what was handed on lies: it will be a span when it comes.
  bool owe(uint64_t event_id) { return outermost_.owe(event_id); }

 private:
  PlannedRows planned(const ToAdd& batch);
  void fold(const ToAdd& batch, const PlannedRows& planned);
  LinkRow link_of(int64_t row, std::vector<TraceRow>& traces);

  OpenUnits units_;
  OpenOutermost outermost_;
  LinkedSpans linked_;
  int64_t next_row_ = 0;  // the number of the next batch's first row; that of each other one is one more than of the row before it
};

}  // namespace recfn::stage
