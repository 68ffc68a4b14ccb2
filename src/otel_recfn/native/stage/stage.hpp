// The way of a row to the span that tells of it: planned, linked and folded as it comes, and told
// when its unit is decided.
//
//     batch ──► PlannedRows ─┬► LinkedSpans: what backward ranges link to
//                            └► OpenUnits: the longest ranges of each, sums of the rest ──► decide
//                            ──► UnitTeller ──► Decided
//
// For one thread at a time, without Python. Where it finds no memory, it isn't to be used any more.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns/column_view.hpp"
#include "model/events.hpp"
#include "model/numbers.hpp"
#include "stage/links.hpp"
#include "stage/planned_rows.hpp"
#include "stage/open_units.hpp"
#include "stage/unit_told.hpp"

namespace recfn::stage {

class Stage {
 public:
  explicit Stage(const Limits& limits) : units_(limits) {}

  // What its rows come to. They wait for the end of their units, or each is a span of its own.
  PlannedRows add(const ToAdd& batch) {
    PlannedRows rows = planned(batch);
    if (batch.folds) {
      fold(batch, rows);
    } else {
      for (const UnitInBatch& unit : rows.units) units_.forget(unit.above);
    }
    outermost_.forget(batch.rows);
    return rows;
  }

  // Where the spans lead that were planned last, to those of ranges by their event ids; none where
  // none leads anywhere.
  UnfilledVector<LinkRow> links_of(const PlannedRows& planned, uint64_t key,
                                   std::vector<TraceRow>& traces) {
    const std::vector<RowLink> found = linked_.take();
    UnfilledVector<LinkRow> links;
    if (found.empty()) return links;
    const int64_t first_row = next_row_ - static_cast<int64_t>(planned.row.size());
    links.resize(planned.row.size(), {0, kNoTrace});
    for (const RowLink& link : found) {
      links[static_cast<size_t>(link.row - first_row)] = {span_id_of(link.event_id, key),
                                                          place_of(link.above, traces)};
    }
    return links;
  }

  Decided decide(const TableView<const UnitToDecide>& wanted, uint64_t key) {
    Decided decided;
    UnitTeller teller(key, linked_.sent(), decided);
    for (size_t place = 0; place < wanted.size(); ++place) {
      const UnitToDecide& one = wanted[place];
      Unit* const unit = units_.find(one.above);
      if (unit == nullptr) continue;
      unit->decide(one.budget, one.end_ns - one.start_ns);
      teller.tell(*unit, one,
                  static_cast<uint32_t>(place));  // at once: its paths are in the cache yet
      if (one.goes_on != 0) {
        unit->begin_next_part();
      } else {
        units_.forget(one.above);
      }
    }
    for (SumsRow& sums : decided.sums) {
      if (sums.span >= kFirstSummary)
        sums.span += static_cast<int64_t>(decided.kept.size()) - kFirstSummary;
    }
    for (KeptRow& kept : decided.kept) kept.link = link_of(kept.row, key, decided.traces);
    return decided;
  }

  // The numbers of the rows that may be kept yet, in ascending order.
  std::vector<int64_t> kept() const { return units_.kept(); }

  // Whether the outermost range is open, in which what was handed on lies: it will be a span when
  // it comes.
  bool owe(uint64_t event_id) { return outermost_.owe(event_id); }

 private:
  static uint32_t place_of(const SpanAbove& above, std::vector<TraceRow>& traces) {
    for (size_t place = traces.size(); place-- > 0;) {  // most links lead into the same trace
      if (traces[place].low == above.trace_low && traces[place].high == above.trace_high)
        return static_cast<uint32_t>(place);
    }
    traces.push_back({above.trace_high, above.trace_low});
    return static_cast<uint32_t>(traces.size() - 1);
  }

  PlannedRows planned(const ToAdd& batch) {
    outermost_.note(batch.announced);
    PlannedRows rows(batch, units_);
    rows.plan();
    linked_.add(batch, rows, next_row_);
    next_row_ += static_cast<int64_t>(rows.row.size());
    return rows;
  }

  void fold(const ToAdd& batch, const PlannedRows& planned) {
    const BatchRows& rows = batch.rows;
    const auto first_row = next_row_ - static_cast<int64_t>(planned.row.size());
    for (size_t of = 0; of < planned.open.size(); ++of)
      planned.open[of]->expect(static_cast<size_t>(planned.units[of].rows));
    for (size_t at = 0; at < planned.row.size(); ++at) {
      const auto row = static_cast<Py_ssize_t>(planned.row[at]);
      const int64_t start_ns = rows.start_ns[row],
                    duration_ns = wrapped_difference(rows.end_ns[row], start_ns);
      const uint64_t event_id = rows.event_id[row];
      uint32_t flags = rows.flags[row];
      // What was open when recording ended counts as shown: only an end says whether it was.
      if ((flags & kPartial) != 0 || outermost_.is_owed(event_id)) flags |= kShown;
      const Surroundings::Called called =
          batch.known.called(rows.name[row], rows.module[row], rows.source[row]);
      planned.open[static_cast<size_t>(planned.unit[at])]->add(
          {event_id, planned.parent[at], start_ns, std::max<int64_t>(0, duration_ns), called.name,
           flags, first_row + static_cast<int64_t>(at), called.shown, called.module, called.modules,
           rows.cpu_time_ns[row]});
    }
  }

  LinkRow link_of(int64_t row, uint64_t key, std::vector<TraceRow>& traces) {
    const RowLink* const link = linked_.find(row);
    if (link == nullptr) return {0, kNoTrace};
    const bool is_sent = linked_.sent().has(link->event_id);
    return {is_sent ? span_id_of(link->event_id, key) : link->above.span_id,
            place_of(link->above, traces)};
  }

  OpenUnits units_;
  OpenOutermost outermost_;
  LinkedSpans linked_;
  int64_t next_row_ = 0;  // the number of the next batch's first row; that of each other one is one
                          // more than of the row before it
};

}  // namespace recfn::stage
