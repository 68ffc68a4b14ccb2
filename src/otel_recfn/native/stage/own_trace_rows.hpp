// The columns of a batch that its traces follow from, and the tables that say which there are.
// `own_traces.hpp` has the rules.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "columns/column_view.hpp"
#include "model/events.hpp"
#include "model/fields.hpp"
#include "stage/stage_rows.hpp"

namespace recfn::stage {

// A trace that began in a batch.
struct NewTraceRow {
  uint64_t begin;  // the event id of the range with which it begins
  uint64_t
      first;  // the one by which it is known: an earlier one if the program knows the trace by it
  int64_t start_ns;
  int64_t opened;      // the index of that range in `Batch.opened`; -1: no batch announced it
  int64_t row;         // a row that lies in it, if no batch announced it; else -1
  bool trains;         // it is a training step's
  bool is_evaluation;  // it is a call outside of training, in a thread that has trained
  bool may_be_asked;   // the program may ask for it: more may come, or a range in it is open
};

constexpr auto fields_of(const NewTraceRow*) {
  return std::array{
      RECFN_FIELD(NewTraceRow, begin),         RECFN_FIELD(NewTraceRow, first),
      RECFN_FIELD(NewTraceRow, start_ns),      RECFN_FIELD(NewTraceRow, opened),
      RECFN_FIELD(NewTraceRow, row),           RECFN_FIELD(NewTraceRow, trains),
      RECFN_FIELD(NewTraceRow, is_evaluation), RECFN_FIELD(NewTraceRow, may_be_asked)};
}

// The trace of an outermost range, as the program knows it. A table has them in ascending order.
struct AskedRow {
  uint64_t event_id, first;
};

constexpr auto fields_of(const AskedRow*) {
  return std::array{RECFN_FIELD(AskedRow, event_id), RECFN_FIELD(AskedRow, first)};
}

// A trace that the program may ask about. Its outermost ranges from `begin` to `newest`, both
// included, have come.
struct LiveTraceRow {
  uint64_t begin, newest, first;
};

constexpr auto fields_of(const LiveTraceRow*) {
  return std::array{RECFN_FIELD(LiveTraceRow, begin), RECFN_FIELD(LiveTraceRow, newest),
                    RECFN_FIELD(LiveTraceRow, first)};
}

// What is known of a trace after a batch.
struct TraceState {
  int64_t end_ns;
  uint64_t until;          // the event id before which its outermost ranges began
  bool has_next;           // another one has begun in its thread
  bool is_over;            // nothing more begins in it
  bool is_open;            // a range in it is open
  bool is_before_current;  // the trace after it isn't over
};

constexpr auto fields_of(const TraceState*) {
  return std::array{RECFN_FIELD(TraceState, end_ns),   RECFN_FIELD(TraceState, until),
                    RECFN_FIELD(TraceState, has_next), RECFN_FIELD(TraceState, is_over),
                    RECFN_FIELD(TraceState, is_open),  RECFN_FIELD(TraceState, is_before_current)};
}

// How long a thread is idle before its trace is over.
struct TraceIdleLimits {
  int64_t ns;
  int64_t short_ns;  // of what began as neither training nor a call
};

// What the traces of a batch follow from.
struct OutermostRanges {
  ColumnView<uint64_t> event_id, root;
  ColumnView<int64_t> start_ns, end_ns;
  ColumnView<uint32_t> context;
  ColumnView<uint8_t> kind;
  OpenedRows opened;
  TableView<const uint8_t> is_outside;  // of each context: whether no span is around its ranges
  TableView<const AskedRow> asked;

  // False with an error set.
  bool take(PyObject* batch, PyObject* outside_mask, PyObject* asked_table) {
    const Reference announced(PyObject_GetAttrString(batch, "opened"));
    return announced && event_id.take(batch, "event_id") && root.take(batch, "root") &&
           start_ns.take(batch, "start_ns") && end_ns.take(batch, "end_ns") &&
           context.take(batch, "context") && kind.take(batch, "kind") &&
           opened.take(announced.get()) && is_outside.take(outside_mask, "outside") &&
           asked.take(asked_table, "asked") &&
           equally_long({event_id.size(), root.size(), start_ns.size(), end_ns.size(),
                         context.size(), kind.size()}) &&
           all_known(size(), [&](Py_ssize_t row) { return context[row] < is_outside.size(); }) &&
           all_known(opened.size(),
                     [&](Py_ssize_t i) { return opened.context[i] < is_outside.size(); });
  }

  Py_ssize_t size() const { return event_id.size(); }
  bool is_outside_of_spans(uint32_t context_index) const { return is_outside[context_index] != 0; }
  // Of rows: whether it is a range outside of spans.
  bool is_range_outside(Py_ssize_t row) const {
    return kind[row] == kRangeRow && is_outside_of_spans(context[row]);
  }
  // The trace that the program knows of a range; 0 if it hasn't asked.
  uint64_t asked_first(uint64_t range) const {
    const auto is_before = [](const AskedRow& one, uint64_t id) { return one.event_id < id; };
    const AskedRow* const found = std::lower_bound(asked.begin(), asked.end(), range, is_before);
    return found != asked.end() && found->event_id == range ? found->first : 0;
  }
};

// The outermost ranges outside of spans that ended in a batch.
class OutermostEnds {
 public:
  explicit OutermostEnds(const OutermostRanges& ranges) {
    for (Py_ssize_t row = 0; row < ranges.size(); ++row) {
      const uint64_t event_id = ranges.event_id[row];
      if (ranges.root[row] != event_id || !ranges.is_range_outside(row)) continue;
      ends_.push_back({event_id, ranges.end_ns[row]});
    }
    // Mostly they are in order already, because a thread's outermost ranges follow each other.
    if (!std::is_sorted(ends_.begin(), ends_.end(), is_before))
      std::stable_sort(ends_.begin(), ends_.end(), is_before);
  }

  // When a range ended; nothing if it is open. Fastest for ids that count up, as begins do.
  std::optional<int64_t> end_ns(uint64_t event_id) {
    if (next_ == ends_.size() || ends_[next_].event_id != event_id) {
      const auto found = std::lower_bound(ends_.begin(), ends_.end(), End{event_id, 0}, is_before);
      next_ = static_cast<size_t>(found - ends_.begin());
    }
    if (next_ == ends_.size() || ends_[next_].event_id != event_id) return std::nullopt;
    return ends_[next_++].end_ns;
  }

 private:
  struct End {
    uint64_t event_id;
    int64_t end_ns;
  };

  static bool is_before(const End& one, const End& other) { return one.event_id < other.event_id; }

  std::vector<End> ends_;
  size_t next_ = 0;
};

}  // namespace recfn::stage
