// Which rows of a batch become spans, in which order, and in which unit.
//
//     current span      the row becomes            its unit
//     ---------------   ------------------------   ---------------------------------
//     a sampled one     a span (`kInSpan`)         that below the current span
//     none              a span (`kRootless`)       that below a root of ours, if it is recorded
//     another one       nothing (`kUnsampled`)
//     suppressed        nothing (`kSuppressed`)
//
// No span either: marks, memory, and a step whose span is the current one.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "model/numbers.hpp"
#include "stage/open_units.hpp"
#include "stage/unit_state.hpp"

namespace recfn::stage {

// Outermost ranges that were announced and have not come yet: event ids in ascending order. A
// thread's ids count up, so that those of a batch are in order, or nearly, and are gone through
// side by side, several times faster than they are found in a hash table.
class OpenOutermost {
 public:
  // Notes what a batch announces, but for the program's steps.
  void note(const OpenedRows& opened_rows) {
    for (Py_ssize_t i = 0; i < opened_rows.size(); ++i) {
      if (opened_rows.source[i] != kStepSource) open_.push_back(opened_rows.event_id[i]);
    }
    put_in_order(open_);
    open_.erase(std::unique(open_.begin(), open_.end()), open_.end());
  }

  // Whether it is open. Spans below it are sent now, so that it has to be a span when it comes.
  bool is_pending_parent(uint64_t event_id) {
    const bool is_open = std::binary_search(open_.begin(), open_.end(), event_id);
    if (is_open && !must_be_span(event_id)) {
      parents_.push_back(event_id);
      put_in_order(parents_);
    }
    return is_open;
  }

  bool must_be_span(uint64_t event_id) const {
    return std::binary_search(parents_.begin(), parents_.end(), event_id);
  }

  // Forgets those that have come.
  void forget(const BatchRows& rows) {
    Ids came;
    for (Py_ssize_t row = 0; row < rows.size() && !open_.empty(); ++row) {
      if (rows.is_outermost(row) && rows.kind[row] == kRangeRow) came.push_back(rows.event_id[row]);
    }
    put_in_order(came);
    remove(came, open_);
    remove(came, parents_);
  }

 private:
  using Ids = UnfilledVector<uint64_t>;

  static void put_in_order(Ids& ids) {
    if (!std::is_sorted(ids.begin(), ids.end())) std::sort(ids.begin(), ids.end());
  }

  static void remove(const Ids& gone, Ids& ids) {
    auto next = gone.begin();
    const auto is_gone = [&](uint64_t id) {
      while (next != gone.end() && *next < id) ++next;
      return next != gone.end() && *next == id;
    };
    ids.erase(std::remove_if(ids.begin(), ids.end(), is_gone), ids.end());
  }

  Ids open_;
  Ids parents_;  // those that spans were sent below
};

// A unit that begins in a batch.
struct NewUnit {
  uint64_t unit;
  uint64_t root;    // the `first` of the root of ours above it; 0: `context` has the span above
  int64_t context;  // the first of these in the batch; -1: `root` says what is above
};

constexpr auto fields_of(const NewUnit*) {
  return std::array{RECFN_FIELD(NewUnit, unit), RECFN_FIELD(NewUnit, root),
                    RECFN_FIELD(NewUnit, context)};
}

// All that a batch tells, and the rows that become spans: columns.
class PlannedRows {
 public:
  PlannedRows(const ToAdd& batch, OpenUnits& open_units)
      : rows_(batch.rows),
        opened_rows_(batch.opened_rows),
        known_(batch.known),
        in_order_(batch.in_order),
        open_units_(open_units),
        context_units_(batch.known.contexts.size(), kNone) {}

  void plan() {
    count_begun();
    const auto size = static_cast<size_t>(rows_.size());
    row.resize(size);
    parent.resize(size);
    unit.resize(size);
    const UnfilledVector<int64_t> order =
        in_order_ || !cross() ? UnfilledVector<int64_t>{} : end_order();
    for (Py_ssize_t next = 0; next < rows_.size(); ++next) {
      const auto i =
          order.empty() ? next : static_cast<Py_ssize_t>(order[static_cast<size_t>(next)]);
      uint32_t unit_index = kNone;
      const Outcome outcome = outcome_of(i, &unit_index);
      ++outcomes[outcome];
      if (outcome >= kInSpan) add(i, unit_index);
    }
    row.resize(planned_);
    parent.resize(planned_);
    unit.resize(planned_);
    for (Unit* each : open) each->in_batch = kNone;
  }

  UnfilledVector<int64_t> row;
  // The event id of the range that its span is a child of; 0: of the span above.
  UnfilledVector<uint64_t> parent;
  UnfilledVector<int64_t> unit;  // index into `units`
  std::vector<UnitInBatch> units;
  std::vector<Unit*> open;         // the same units
  std::vector<NewUnit> new_units;  // those that begin in this batch
  std::vector<int64_t> outcomes = std::vector<int64_t>(kOutcomes);  // how many rows have each

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Steps have a span of the program's, which isn't below itself.
  void count_begun() {
    for (Py_ssize_t i = 0; i < opened_rows_.size(); ++i) {
      if (opened_rows_.source[i] == kStepSource ||
          known_.contexts[opened_rows_.context[i]].outcome != kInSpan) {
        continue;
      }
      ++units[context_unit(opened_rows_.context[i])].announced;
    }
  }

  // A drain reads one thread after the other. So a range may stand before one of another thread
  // that lies in it.
  bool cross() const {
    bool ordered = true;
    for (Py_ssize_t i = 1; i < rows_.size() && ordered; ++i) {
      ordered = rows_.end_ns[i] >= rows_.end_ns[i - 1];
    }
    if (ordered) return false;
    for (Py_ssize_t i = 0; i < rows_.size(); ++i) {
      const uint64_t enclosing = rows_.parent_in_span(i);
      if (enclosing != 0 && ((enclosing ^ rows_.event_id[i]) >> kOrdinalBits) != 0) return true;
    }
    return false;
  }

  UnfilledVector<int64_t> end_order() const {
    UnfilledVector<int64_t> order(static_cast<size_t>(rows_.size()));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    const auto ended_before = [this](int64_t one, int64_t other) {
      return rows_.end_ns[one] < rows_.end_ns[other];
    };
    std::stable_sort(order.begin(), order.end(), ended_before);
    return order;
  }

  Outcome outcome_of(Py_ssize_t i, uint32_t* unit_index) {
    const uint32_t context = rows_.context[i];
    const ContextRow& enclosing = known_.contexts[context];
    if (rows_.kind[i] != kRangeRow) return kOtherKind;
    if (enclosing.outcome == kInSpan) {
      const bool is_step = rows_.source[i] == kStepSource && rows_.parent_in_span(i) == 0;
      if (is_step && enclosing.is_step != 0) {
        end_step(enclosing.parent_span(), i);
        return kOtherKind;
      }
      *unit_index = context_unit(context);
    } else if (enclosing.outcome == kRootless) {
      *unit_index = root_unit(rows_.root[i]);
      if (*unit_index == kNone) return kUnsampled;
    }
    return static_cast<Outcome>(enclosing.outcome);
  }

  // Tells the unit in a step what that took.
  void end_step(const ParentSpan& step, Py_ssize_t i) {
    Unit* const unit = open_units_.find(step);
    if (unit == nullptr) return;
    const int64_t duration_ns = wrapped_difference(rows_.end_ns[i], rows_.start_ns[i]);
    unit->state.end_step({thread_of(rows_.event_id[i]), duration_ns, rows_.cpu_time_ns[i]});
  }

  void add(Py_ssize_t i, uint32_t unit_index) {
    const uint64_t enclosing = rows_.parent_in_span(i);
    const bool in_step =
        known_.contexts[rows_.context[i]].is_step != 0 && enclosing == rows_.root[i];
    row[planned_] = i;
    unit[planned_] = unit_index;
    parent[planned_] = in_step ? 0 : enclosing;  // the step's span is the program's
    ++planned_;
    UnitInBatch& share = units[unit_index];
    ++share.rows;
    share.first_ns = std::min(share.first_ns, rows_.start_ns[i]);
    share.last_ns = std::max(share.last_ns, rows_.end_ns[i]);
    if (enclosing == 0 && rows_.cpu_time_ns[i] >= 0) {
      share.top_ns =
          wrapped_sum(share.top_ns, wrapped_difference(rows_.end_ns[i], rows_.start_ns[i]));
      share.top_cpu_ns = wrapped_sum(share.top_cpu_ns, rows_.cpu_time_ns[i]);
    }
    share.outermost += enclosing == 0 ? 1 : 0;
    share.failed += (rows_.flags[i] & kError) != 0 ? 1 : 0;
  }

  uint32_t context_unit(uint32_t context) {
    uint32_t& known = context_units_[context];
    if (known == kNone) known = unit_below(known_.contexts[context].parent_span(), context, 0);
    return known;
  }

  uint32_t root_unit(uint64_t root) {
    if (root == last_root_ && root != 0) return last_root_unit_;
    const RootRow* const found = known_.root(root);
    last_root_ = root;
    last_root_unit_ = found == nullptr ? kNone : unit_below(found->parent_span(), -1, found->first);
    return last_root_unit_;
  }

  uint32_t unit_below(const ParentSpan& parent_span, int64_t context, uint64_t root) {
    const auto [unit, is_new] = open_units_.below(parent_span);
    if (is_new) new_units.push_back({unit->state.number, root, context});
    if (unit->in_batch == kNone) {
      unit->in_batch = static_cast<uint32_t>(units.size());
      units.push_back({parent_span});
      open.push_back(unit);
    }
    return unit->in_batch;
  }

  const BatchRows& rows_;
  const OpenedRows& opened_rows_;
  const BatchTables& known_;
  const bool in_order_;
  OpenUnits& open_units_;
  size_t planned_ = 0;  // rows, until now
  std::vector<uint32_t> context_units_;
  uint64_t last_root_ = 0;  // rows of one mostly stand together
  uint32_t last_root_unit_ = kNone;
};

}  // namespace recfn::stage
