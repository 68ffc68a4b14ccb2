// The way of a row to its span: planned, linked and folded as it comes, and made a span when its
// unit is decided.
//
//     batch ──► PlannedRows ─┬► LinkedSpans: what backward ranges link to
//                            └► OpenUnits: the longest ranges of each, sums of the rest
//                               ──► decide ──► UnitSpans ──► Decided
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
#include "stage/spans_inside.hpp"
#include "stage/unit_spans.hpp"

namespace recfn::stage {

class Stage {
 public:
  explicit Stage(const Limits& limits) : units_(limits) {}

  // Adds a batch, whose rows wait for the end of their units. `continues`: it is a part of the same
  // batch as the last one.
  PlannedRows add(const ToAdd& batch, bool continues) {
    if (!continues) units_.begin_batch();
    drained_ns_ = std::max(drained_ns_, batch.drained_ns);
    PlannedRows rows = planned(batch);
    for (size_t i = 0; i < rows.units.size(); ++i) units_.add(*rows.open[i], rows.units[i]);
    spans_inside_.note(batch.rows);
    fold(batch, rows);
    spans_inside_.forget(batch.rows);
    outermost_.forget(batch.rows);
    return rows;
  }

  // Plans a batch in which each row becomes a span of its own, and nothing waits.
  PlannedRows plan(const ToAdd& batch) {
    PlannedRows rows = planned(batch);
    for (const NewUnit& unit : rows.new_units) units_.forget(unit.unit);  // all end here
    outermost_.forget(batch.rows);
    return rows;
  }

  // Where the spans link to that were planned last, which is asked once.
  LinkColumns make_links(const PlannedRows& planned, uint64_t key) {
    LinkColumns links;
    const int64_t first_row = next_row_ - static_cast<int64_t>(planned.row.size());
    for (const RowLink& link : linked_.take()) {
      const auto index = static_cast<size_t>(link.row - first_row);
      const uint64_t span_id = span_id_of(link.event_id, key);
      const UnitInBatch& unit = planned.units[static_cast<size_t>(planned.unit[index])];
      if (span_id == parent_span_id(planned.parent[index], unit.parent_span, key)) continue;
      links.set(index, planned.row.size(), span_id, link.parent_span, planned.units.size());
    }
    return links;
  }

  // The number of the open unit below that span; 0 if there is none.
  uint64_t find(const ParentSpan& parent_span) {
    const Unit* const unit = units_.find(parent_span);
    return unit == nullptr ? 0 : unit->state.number;
  }

  // What Python says of a unit; false if it isn't open.
  bool end_span(uint64_t unit, const SpanEnd& end) {
    return change(unit, [&](UnitState& state) { state.end_span(end); });
  }
  bool finish(uint64_t unit, bool takes_sums) {
    return change(unit, [&](UnitState& state) { state.finish(takes_sums); });
  }

  // No batch came for as long as one takes.
  void note_idle() { units_.begin_batch(); }

  std::vector<UnendedUnit> unended() const { return units_.unended(); }

  // The units to which nothing more can come that had begun before that drain, or the last one.
  // They are to be decided.
  std::vector<UnitSummary> due(int64_t drained_ns, int64_t now_ns, int64_t waiting_rows) {
    drained_ns_ = std::max(drained_ns_, drained_ns);
    return units_.due(drained_ns_, now_ns, waiting_rows);
  }

  // The units that have so many rows.
  std::vector<UnitSummary> units_with_rows(int64_t min_rows) const {
    return units_.with_rows(min_rows);
  }

  // Decides units, each once, and forgets them, or (`is_partial`) their ranges until now.
  // `sampled`: the spans that samples give them.
  Decided decide(const TableView<const GrantRow>& grants,
                 const TableView<const SampledRow>& sampled, bool is_partial, uint64_t key) {
    Decided decided;
    UnitSpans spans(key, linked_, decided);
    std::vector<ParentSpan> parent_spans(grants.size());
    const auto find_forward = [this](int64_t row) {
      const RowLink* const link = linked_.find(row);
      return link == nullptr ? 0 : link->event_id;
    };
    for (size_t index = 0; index < grants.size(); ++index) {
      const GrantRow& grant = grants[index];
      Unit* const unit = units_.find(grant.unit);
      if (unit == nullptr) continue;
      parent_spans[index] = units_.parent_span(grant.unit);
      const UnitSummary summary = unit->state.summary();
      const bool takes_sums = unit->state.takes_sums();
      if (!is_partial) unit->add_nodes();
      const UnitToDecide wanted{
          parent_spans[index], grant.spans, summary.start_ns,    summary.end_ns,
          unit->state.step(),  takes_sums,  grant.is_named != 0, sampled_in(grant.unit, sampled)};
      const int64_t duration_ns = wrapped_difference(summary.end_ns, summary.start_ns);
      unit->decide(grant.spans, duration_ns, !takes_sums, find_forward);
      // At once, while its paths are in the cache.
      spans.add(*unit, wanted, static_cast<uint32_t>(index));
      if (is_partial) {
        unit->begin_next_part();
      } else {
        units_.forget(grant.unit);
      }
    }
    number_summaries(decided.sums, decided.selected.size());
    number_summaries(decided.callers, decided.selected.size());
    link_selected(decided, key, parent_spans);
    return decided;
  }

  // Backward nodes wait no longer for the ranges around them. Names can be forgotten after the next
  // parts.
  void add_nodes() { units_.add_nodes(); }

  // How many rows these units have.
  int64_t granted_rows(const TableView<const GrantRow>& grants) {
    int64_t rows = 0;
    for (const GrantRow& grant : grants) {
      const Unit* const unit = units_.find(grant.unit);
      if (unit != nullptr) rows += unit->state.rows();
    }
    return rows;
  }

  // The number that the first row of the next batch gets; those of the others follow.
  int64_t next_row() const { return next_row_; }

  // The numbers of the rows that may be kept yet, in ascending order.
  std::vector<int64_t> selected() const { return units_.selected(); }

  // Whether an outermost range is open. Spans below it are sent now, so it is a span when it comes.
  bool is_pending_parent(uint64_t event_id) { return outermost_.is_pending_parent(event_id); }

 private:
  PlannedRows planned(const ToAdd& batch) {
    outermost_.note(batch.opened_rows);
    PlannedRows rows(batch, units_);
    rows.plan();
    linked_.add(batch, rows, next_row_);
    next_row_ += static_cast<int64_t>(rows.row.size());
    return rows;
  }

  void fold(const ToAdd& batch, const PlannedRows& planned) {
    const BatchRows& rows = batch.rows;
    const auto first_row = next_row_ - static_cast<int64_t>(planned.row.size());
    const bool joins = batch.known.names->joins_nodes();
    for (size_t i = 0; i < planned.open.size(); ++i) {
      planned.open[i]->expect(static_cast<size_t>(planned.units[i].rows));
    }
    for (size_t i = 0; i < planned.row.size(); ++i) {
      const auto row = static_cast<Py_ssize_t>(planned.row[i]);
      const int64_t start_ns = rows.start_ns[row];
      const int64_t duration_ns = wrapped_difference(rows.end_ns[row], start_ns);
      const uint64_t event_id = rows.event_id[row];
      uint32_t flags = rows.flags[row];
      // What was open when recording ended counts as shown: only an end says whether it was.
      if ((flags & kPartial) != 0 || outermost_.must_be_span(event_id)) flags |= kExposed;
      if (joins && planned.parent[i] != 0 && rows.in_backward(row)) flags |= kBackwardNode;
      const BatchTables::Called called =
          batch.known.called(rows.name[row], rows.module[row], rows.source[row]);
      Unit& unit = *planned.open[static_cast<size_t>(planned.unit[i])];
      const int64_t in_spans_ns = spans_inside_.duration_ns(event_id);
      if (in_spans_ns != 0) unit.note_spans_inside(event_id, in_spans_ns);
      // PyTorch announces the range around a backward node as an operator.
      const bool is_operator = rows.is_operator(row) && called.display_name == called.name;
      unit.add({event_id, planned.parent[i], start_ns, std::max<int64_t>(0, duration_ns),
                called.name, flags, first_row + static_cast<int64_t>(i), called.display_name,
                called.module, called.modules, 0, 0, rows.scope[row], is_operator,
                rows.cpu_time_ns[row]});
    }
  }

  static std::vector<SelectedTimes> sampled_in(uint64_t unit,
                                               const TableView<const SampledRow>& sampled) {
    std::vector<SelectedTimes> found;
    for (const SampledRow& row : sampled) {
      if (row.unit != unit) continue;
      const Stretch times{row.start_ns, row.end_ns};
      found.push_back({0, row.parent, static_cast<uint32_t>(row.thread), times});
    }
    return found;
  }

  // In rows that name spans: after the ranges that are kept.
  template <typename Rows>
  static void number_summaries(Rows& rows, size_t selected) {
    for (auto& row : rows) {
      if (row.span >= kFirstSummary) row.span += static_cast<int64_t>(selected) - kFirstSummary;
    }
  }

  template <typename Change>
  bool change(uint64_t number, Change change_state) {
    Unit* const unit = units_.find(number);
    if (unit != nullptr) change_state(unit->state);
    return unit != nullptr;
  }

  void link_selected(Decided& decided, uint64_t key, const std::vector<ParentSpan>& parent_spans) {
    const SelectedColumns& selected = decided.selected;
    for (size_t index = 0; index < selected.size(); ++index) {
      const RowLink* const link = linked_.find(selected.row[index]);
      if (link == nullptr) continue;
      const uint64_t span_id = linked_.span_id(*link, key);
      const ParentSpan& parent_span =
          parent_spans[static_cast<size_t>(selected.parent_span[index])];
      if (span_id == parent_span_id(selected.parent[index], parent_span, key)) continue;
      decided.links.set(index, selected.size(), span_id, link->parent_span, parent_spans.size());
    }
  }

  OpenUnits units_;
  OpenOutermost outermost_;
  SpansInside spans_inside_;
  LinkedSpans linked_;
  int64_t drained_ns_ = 0;  // what had ended by then has come
  int64_t next_row_ = 0;    // the number of the next batch's first row; rows count up
};

}  // namespace recfn::stage
