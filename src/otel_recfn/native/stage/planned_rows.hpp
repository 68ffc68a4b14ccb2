// Which rows of a batch become spans, in which order, and in which unit.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/unfilled.hpp"
#include "model/events.hpp"
#include "model/numbers.hpp"
#include "stage/open_units.hpp"

namespace recfn::stage {

// Outermost ranges that were announced and have not come yet: event ids in ascending order. A
// thread's ids count up, so that those of a batch are in order, or nearly, and are gone through
// side by side, several times faster than they are found in a hash table.
class OpenOutermost {
 public:
  // Notes what a batch announces, but for the program's steps.
  void note(const AnnouncedRows& announced) {
    for (Py_ssize_t at = 0; at < announced.size(); ++at) {
      if (announced.source[at] != kStepSource) open_.push_back(announced.event_id[at]);
    }
    put_in_order(open_);
    open_.erase(std::unique(open_.begin(), open_.end()), open_.end());
  }

  // Whether it is open. Spans below it were handed on: it has to be a span when it comes.
  bool owe(uint64_t event_id) {
    const bool is_open = std::binary_search(open_.begin(), open_.end(), event_id);
    if (is_open && !is_owed(event_id)) owed_.push_back(event_id), put_in_order(owed_);
    return is_open;
  }

  bool is_owed(uint64_t event_id) const {
    return std::binary_search(owed_.begin(), owed_.end(), event_id);
  }

  // Forgets those that have come.
  void forget(const BatchRows& rows) {
    Ids came;
    for (Py_ssize_t row = 0; row < rows.size() && !open_.empty(); ++row) {
      if (rows.is_outermost(row)) came.push_back(rows.event_id[row]);
    }
    put_in_order(came);
    remove(came, open_), remove(came, owed_);
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

  Ids open_, owed_;
};

// What a batch tells of one unit: a row of a table for Python.
struct UnitInBatch {
  SpanAbove above;
  uint64_t root;    // an outermost range below it that has no span around it; 0: `context` has the
                    // span above
  int64_t context;  // the first of these in the batch; -1: `root` says what is above
  int64_t begun, rows, first_ns, last_ns, outermost, failed;
  int64_t top_ns, top_cpu_ns;  // of ranges directly below it, as far as their CPU time is known:
                               // this, and how long they took
};

// All that a batch tells, and the rows that become spans: columns.
class PlannedRows {
 public:
  PlannedRows(const ToAdd& batch, OpenUnits& open_units)
      : rows_(batch.rows),
        announced_(batch.announced),
        known_(batch.known),
        in_order_(batch.in_order),
        open_units_(open_units),
        of_context_(batch.known.contexts.size(), kNone) {}

  void plan() {
    count_begun();
    const auto size = static_cast<size_t>(rows_.size());
    row.resize(size), parent.resize(size), unit.resize(size);
    const UnfilledVector<int64_t> order =
        in_order_ || !cross() ? UnfilledVector<int64_t>{} : order_of_ends();
    for (Py_ssize_t next = 0; next < rows_.size(); ++next) {
      const auto at =
          order.empty() ? next : static_cast<Py_ssize_t>(order[static_cast<size_t>(next)]);
      uint32_t of = kNone;
      const Fate fate = fate_of(at, &of);
      ++fates[fate];
      if (fate >= kInSpan) add(at, of);
    }
    row.resize(planned_), parent.resize(planned_), unit.resize(planned_);
    for (Unit* each : open) each->in_batch = kNone;
  }

  UnfilledVector<int64_t> row;
  UnfilledVector<uint64_t>
      parent;  // the event id of the range that its span is a child of; 0: of the span above
  UnfilledVector<int64_t> unit;  // index into `units`
  std::vector<UnitInBatch> units;
  std::vector<Unit*> open;                                    // the same units
  std::vector<int64_t> fates = std::vector<int64_t>(kFates);  // how many rows have each

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Steps have a span of the program's, which isn't below itself.
  void count_begun() {
    for (Py_ssize_t at = 0; at < announced_.size(); ++at) {
      if (announced_.source[at] == kStepSource ||
          known_.contexts[announced_.context[at]].fate != kInSpan)
        continue;
      ++units[unit_of_context(announced_.context[at])].begun;
    }
  }

  // A drain reads one thread after the other. So a range may stand before one of another thread
  // that lies in it.
  bool cross() const {
    bool ordered = true;
    for (Py_ssize_t at = 1; at < rows_.size() && ordered; ++at)
      ordered = rows_.end_ns[at] >= rows_.end_ns[at - 1];
    if (ordered) return false;
    for (Py_ssize_t at = 0; at < rows_.size(); ++at) {
      if (rows_.parent[at] != 0 && ((rows_.parent[at] ^ rows_.event_id[at]) >> kOrdinalBits) != 0)
        return true;
    }
    return false;
  }

  UnfilledVector<int64_t> order_of_ends() const {
    UnfilledVector<int64_t> order(static_cast<size_t>(rows_.size()));
    for (size_t at = 0; at < order.size(); ++at) order[at] = static_cast<int64_t>(at);
    const auto ended_before = [this](int64_t one, int64_t other) {
      return rows_.end_ns[one] < rows_.end_ns[other];
    };
    std::stable_sort(order.begin(), order.end(), ended_before);
    return order;
  }

  Fate fate_of(Py_ssize_t at, uint32_t* of) {
    const uint32_t context = rows_.context[at];
    const ContextRow& around = known_.contexts[context];
    if (rows_.kind[at] != kRangeRow) return kOtherKind;
    if (around.fate == kInSpan) {
      if (rows_.source[at] == kStepSource && around.of_step != 0 && rows_.parent[at] == 0)
        return kOtherKind;
      *of = unit_of_context(context);
    } else if (around.fate == kRootless) {
      *of = unit_of_root(rows_.root[at]);
      if (*of == kNone) return kUnsampled;
    }
    return static_cast<Fate>(around.fate);
  }

  void add(Py_ssize_t at, uint32_t of) {
    const uint64_t around = rows_.parent[at];
    const bool in_step =
        known_.contexts[rows_.context[at]].of_step != 0 && around == rows_.root[at];
    row[planned_] = at, unit[planned_] = of;
    parent[planned_++] = in_step ? 0 : around;  // the step's span is the program's
    UnitInBatch& told = units[of];
    ++told.rows;
    told.first_ns = std::min(told.first_ns, rows_.start_ns[at]),
    told.last_ns = std::max(told.last_ns, rows_.end_ns[at]);
    if (around == 0 && rows_.cpu_time_ns[at] >= 0) {
      told.top_ns =
          wrapped_sum(told.top_ns, wrapped_difference(rows_.end_ns[at], rows_.start_ns[at]));
      told.top_cpu_ns = wrapped_sum(told.top_cpu_ns, rows_.cpu_time_ns[at]);
    }
    told.outermost += around == 0 ? 1 : 0, told.failed += (rows_.flags[at] & kError) != 0 ? 1 : 0;
  }

  uint32_t unit_of_context(uint32_t context) {
    uint32_t& known = of_context_[context];
    if (known == kNone) known = unit_below(known_.contexts[context].above, context, 0);
    return known;
  }

  uint32_t unit_of_root(uint64_t root) {
    if (root == last_root_ && root != 0) return of_last_root_;
    const SpanAbove* const above = known_.root(root);
    last_root_ = root;
    return of_last_root_ = above == nullptr ? kNone : unit_below(*above, -1, root);
  }

  uint32_t unit_below(const SpanAbove& above, int64_t context, uint64_t root) {
    Unit& unit = open_units_.below(above);
    if (unit.in_batch == kNone) {
      unit.in_batch = static_cast<uint32_t>(units.size());
      units.push_back({above, root, context, 0, 0, INT64_MAX, 0, 0, 0, 0, 0});
      open.push_back(&unit);
    }
    return unit.in_batch;
  }

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
