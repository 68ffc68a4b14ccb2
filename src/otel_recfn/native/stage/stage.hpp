// The way of a row to the span that tells of it: planned, linked and folded as it comes, and told when its unit is decided.
//
//     batch ──► PlannedRows ─┬► LinkedSpans: what backward ranges link to
//                            └► Fold: the longest of each unit, sums of the rest ──► decide ──► FoldedTeller ──► Decided
//
// For one thread at a time, without Python. Where it finds no memory, what was added is lost.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fold/fold.hpp"
#include "stage/folded_told.hpp"
#include "stage/linked_spans.hpp"
#include "stage/outermost.hpp"
#include "stage/planned_rows.hpp"

namespace recfn::stage {

// A batch that is added, as Python gives it.
struct ToAdd {
  BatchRows rows;
  AnnouncedRows announced;
  Surroundings known;
  bool in_order = false;  // see PlannedRows::plan
};

constexpr uint32_t kNoTrace = UINT32_MAX;

// A trace that something is linked in.
struct TraceRow {
  uint64_t high, low;
};

// Where a row's link leads: a span id, 0 for none, and its place among the traces.
struct LinkRow {
  uint64_t span_id;
  uint32_t trace;
};

struct KeptSpanRow {
  uint64_t parent;  // the event id of the range that its span is a child of; 0: of the span above its unit
  LinkRow link;
  int64_t row, folded;  // its number; how many ranges were folded into it
  uint32_t unit;        // its place among those that were decided together, as in what follows
};

// A span for the ranges of a path.
struct SummaryRow {
  uint64_t span_id, parent_id, first_id;
  int64_t count, total_ns, shortest_ns, longest_ns, start_ns, end_ns;
  int64_t sums;        // which it tells; -1: none
  int64_t counts_end;  // where its histogram ends; it begins where that of the one before ends
  uint32_t unit, name, digits;
};

// Units that were decided together.
struct Decided {
  UnfilledVector<KeptSpanRow> kept;
  UnfilledVector<SumsRow> sums;
  UnfilledVector<TopRow> top;
  UnfilledVector<SummaryRow> summaries;
  UnfilledVector<int64_t> counts;
  std::vector<TraceRow> traces;
};

class Stage {
 public:
  explicit Stage(const folding::Limits& limits) : fold_(limits) {}

  // What its rows come to. `folds`: they wait for the end of their units; else each is a span of its own.
  PlannedRows add(const ToAdd& batch, bool folds);
  // The number of the first row of the next batch; that of each other one is one more than of the row before it.
  int64_t next_row() const { return next_row_; }
  // Where the rows of a plan that isn't folded lead, to spans of ranges by their event ids; none where no row leads anywhere.
  UnfilledVector<LinkRow> links_of(const PlannedRows& planned, uint64_t key, std::vector<TraceRow>& traces);

  Decided decide(const TableView<UnitToDecide>& units, uint64_t key);
  // The numbers of the rows that may be kept yet, in ascending order.
  std::vector<int64_t> kept();
  // Whether the outermost range is open, in which what was handed on lies: it will be a span when it comes.
  bool owe(uint64_t event_id) { return outermost_.owe(event_id); }

 private:
  LinkRow link_of(int64_t row, std::vector<TraceRow>& traces);
  void add_kept(const folding::FinishedColumns& done, Decided& decided);
  void add_summaries(const folding::FinishedColumns& done, const std::vector<ToldPath>& told_paths,
                     const TableView<UnitToDecide>& units, uint64_t key, Decided& decided);
  void note_telling(const folding::FinishedColumns& done, const TableView<UnitToDecide>& units, uint64_t key,
                    const Decided& decided);

  UnitNumbers numbers_;
  OpenOutermost outermost_;
  LinkedSpans linked_;
  folding::Fold fold_;
  int64_t next_row_ = 0;
};

}  // namespace recfn::stage
