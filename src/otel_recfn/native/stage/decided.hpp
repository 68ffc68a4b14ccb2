// What comes of units that are decided together: columns and tables, which Python reads by the
// names of their members.
//
//     table       a row is
//     ---------   -------------------------------------------------------------------------
//     selected    a span of one range
//     summaries   a span of the sums of a path: all ranges of one path of names and thread
//     callers     the name of an operator that only calls the one of a span
//     sums        what was folded into a span, or in the whole unit
//     top         a name that worked for much of the time of some sums, or waited
//     links       where a span of one range links to
//
// Spans are numbered over both tables: first the selected ranges, then the summaries.
//
// A table is written row by row, each with all its members, and numpy reads a member of all rows as
// a column with a stride. Measured: a vector for each member was slower.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns/fields.hpp"
#include "memory/unfilled.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

// A trace that something is linked in.
struct TraceRow {
  uint64_t high, low;
};

constexpr auto fields_of(const TraceRow*) {
  return std::array{RECFN_FIELD(TraceRow, high), RECFN_FIELD(TraceRow, low)};
}

// Where spans link to, as columns; both are empty if none links anywhere.
struct LinkColumns {
  UnfilledVector<uint64_t> linked_id;   // a span id; 0 for none
  UnfilledVector<int64_t> linked_span;  // its trace: an index into the spans above units and then
  std::vector<TraceRow> traces;         // these

  // `units`: the number of the spans above units.
  void set(size_t index, size_t rows, uint64_t span_id, const ParentSpan& parent_span,
           size_t units) {
    if (linked_id.empty()) {
      linked_id.assign(rows, 0);
      linked_span.assign(rows, 0);
    }
    linked_id[index] = span_id;
    linked_span[index] = static_cast<int64_t>(units + trace_index(parent_span));
  }

 private:
  size_t trace_index(const ParentSpan& parent_span) {
    for (size_t index = traces.size(); index-- > 0;) {  // most links lead into the same trace
      const TraceRow& trace = traces[index];
      if (trace.low == parent_span.trace_low && trace.high == parent_span.trace_high) return index;
    }
    traces.push_back({parent_span.trace_high, parent_span.trace_low});
    return traces.size() - 1;
  }
};

// The selected ranges, as columns.
struct SelectedColumns {
  UnfilledVector<int64_t> row;      // their numbers
  UnfilledVector<uint64_t> parent;  // the event id of the parent range; 0: the span above the unit
  UnfilledVector<uint64_t> event_id;
  UnfilledVector<uint64_t> span_event_id;  // the event id that its span's id is made of
  UnfilledVector<uint64_t> enclosing_id;   // the event id of the range around it
  UnfilledVector<int64_t> start_ns, end_ns;
  UnfilledVector<int64_t>
      parent_span;  // the index of the unit among those that were decided together

  size_t size() const { return row.size(); }
};

// Sums that are attributes of a span: of what was folded into it, or (`is_whole_unit`) in the whole
// unit.
struct SumsRow {
  int64_t unit;
  // The number of the span that has the sums; -1: the span above the unit.
  int64_t span;
  int64_t is_whole_unit, ranges, duration_ns;
  int64_t top_end;  // where its names end; they begin where those of the sums before it end
};

constexpr auto fields_of(const SumsRow*) {
  return std::array{RECFN_FIELD(SumsRow, unit),          RECFN_FIELD(SumsRow, span),
                    RECFN_FIELD(SumsRow, is_whole_unit), RECFN_FIELD(SumsRow, ranges),
                    RECFN_FIELD(SumsRow, duration_ns),   RECFN_FIELD(SumsRow, top_end)};
}

// A name that worked for much of the time of some sums, or waited.
struct TopRow {
  int64_t count, self_ns, worked_ns;
  uint32_t name;
};

constexpr auto fields_of(const TopRow*) {
  return std::array{RECFN_FIELD(TopRow, count), RECFN_FIELD(TopRow, self_ns),
                    RECFN_FIELD(TopRow, worked_ns), RECFN_FIELD(TopRow, name)};
}

// A span for the ranges of a path.
struct SummaryRow {
  uint64_t span_id, parent_id, first_id;
  int64_t count, total_ns, shortest_ns, longest_ns, start_ns, end_ns;
  int64_t cpu_time_ns;
  // `module`: where in its model that is called, maybe with `*` for numbers; 0: that isn't the same
  // for all. `enclosing_module`: the same of the module call around it.
  uint32_t unit, name, module, enclosing_module;
  uint32_t thread;  // the recorder's number
  uint32_t scope;   // `kSeveral`: that isn't the same for all
};

constexpr auto fields_of(const SummaryRow*) {
  return std::array{RECFN_FIELD(SummaryRow, span_id),    RECFN_FIELD(SummaryRow, parent_id),
                    RECFN_FIELD(SummaryRow, first_id),   RECFN_FIELD(SummaryRow, count),
                    RECFN_FIELD(SummaryRow, total_ns),   RECFN_FIELD(SummaryRow, shortest_ns),
                    RECFN_FIELD(SummaryRow, longest_ns), RECFN_FIELD(SummaryRow, start_ns),
                    RECFN_FIELD(SummaryRow, end_ns),     RECFN_FIELD(SummaryRow, cpu_time_ns),
                    RECFN_FIELD(SummaryRow, unit),       RECFN_FIELD(SummaryRow, name),
                    RECFN_FIELD(SummaryRow, module),     RECFN_FIELD(SummaryRow, enclosing_module),
                    RECFN_FIELD(SummaryRow, thread),     RECFN_FIELD(SummaryRow, scope)};
}

// An operator that only calls the one of a span, and has none itself. Those of a span stand beside
// each other, the outermost first.
struct CallerRow {
  int64_t span;  // numbered as for sums
  uint32_t name;
};

constexpr auto fields_of(const CallerRow*) {
  return std::array{RECFN_FIELD(CallerRow, span), RECFN_FIELD(CallerRow, name)};
}

// Units that were decided together.
struct Decided {
  SelectedColumns selected;
  UnfilledVector<SumsRow> sums;
  UnfilledVector<TopRow> top;
  UnfilledVector<SummaryRow> summaries;
  UnfilledVector<CallerRow> callers;
  LinkColumns links;
};

constexpr int64_t kFirstSummary =
    int64_t{1} << 62;  // its number, before it is known how many ranges are selected

}  // namespace recfn::stage
