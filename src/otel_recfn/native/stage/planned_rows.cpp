#include "stage/planned_rows.hpp"

#include <algorithm>

#include "model/events.hpp"

namespace recfn::stage {

void PlannedRows::plan() {
  count_begun();
  const auto size = static_cast<size_t>(rows_.size());
  row.resize(size), parent.resize(size), unit.resize(size);
  const UnfilledVector<int64_t> order = in_order_ || !cross() ? UnfilledVector<int64_t>{} : order_of_ends();
  for (Py_ssize_t next = 0; next < rows_.size(); ++next) {
    const auto at = order.empty() ? next : static_cast<Py_ssize_t>(order[static_cast<size_t>(next)]);
    uint32_t of = kNone;
    const Fate fate = fate_of(at, &of);
    ++fates[fate];
    if (fate >= kInSpan) add(at, of);
  }
  row.resize(planned_), parent.resize(planned_), unit.resize(planned_);
  for (OpenUnit* each : open) each->in_batch = kNone;
}

// Steps have a span of the program's, which isn't below itself.
void PlannedRows::count_begun() {
  for (Py_ssize_t at = 0; at < announced_.size(); ++at) {
    if (announced_.source[at] == kStepSource || known_.contexts[announced_.context[at]].fate != kInSpan) continue;
    ++units[unit_of_context(announced_.context[at])].begun;
  }
}

// A drain reads one thread after the other. So a range may stand before one of another thread that lies in it.
bool PlannedRows::cross() const {
  bool ordered = true;
  for (Py_ssize_t at = 1; at < rows_.size() && ordered; ++at) ordered = rows_.end_ns[at] >= rows_.end_ns[at - 1];
  if (ordered) return false;
  for (Py_ssize_t at = 0; at < rows_.size(); ++at) {
    if (rows_.parent[at] != 0 && ((rows_.parent[at] ^ rows_.event_id[at]) >> kOrdinalBits) != 0) return true;
  }
  return false;
}

UnfilledVector<int64_t> PlannedRows::order_of_ends() const {
  UnfilledVector<int64_t> order(static_cast<size_t>(rows_.size()));
  for (size_t at = 0; at < order.size(); ++at) order[at] = static_cast<int64_t>(at);
  const auto ended_before = [this](int64_t one, int64_t other) { return rows_.end_ns[one] < rows_.end_ns[other]; };
  std::stable_sort(order.begin(), order.end(), ended_before);
  return order;
}

Fate PlannedRows::fate_of(Py_ssize_t at, uint32_t* of) {
  const uint32_t context = rows_.context[at];
  const ContextRow& around = known_.contexts[context];
  if (rows_.kind[at] != kRangeEvent) return kOtherKind;
  if (around.fate == kInSpan) {
    if (rows_.source[at] == kStepSource && around.of_step != 0 && rows_.parent[at] == 0) return kOtherKind;
    *of = unit_of_context(context);
  } else if (around.fate == kRootless) {
    *of = unit_of_root(rows_.root[at]);
    if (*of == kNone) return kUnsampled;
  }
  return static_cast<Fate>(around.fate);
}

void PlannedRows::add(Py_ssize_t at, uint32_t of) {
  const uint64_t around = rows_.parent[at];
  const bool in_step = known_.contexts[rows_.context[at]].of_step != 0 && around == rows_.root[at];
  row[planned_] = at, unit[planned_] = of;
  parent[planned_++] = in_step ? 0 : around;  // the step's span is the program's
  UnitInBatch& told = units[of];
  ++told.rows;
  told.first_ns = std::min(told.first_ns, rows_.start_ns[at]), told.last_ns = std::max(told.last_ns, rows_.end_ns[at]);
  told.outermost += around == 0 ? 1 : 0, told.failed += (rows_.flags[at] & kError) != 0 ? 1 : 0;
}

uint32_t PlannedRows::unit_of_context(uint32_t context) {
  uint32_t& known = of_context_[context];
  if (known == kNone) known = unit_below(known_.contexts[context].above, context, 0);
  return known;
}

uint32_t PlannedRows::unit_of_root(uint64_t root) {
  if (root == last_root_ && root != 0) return of_last_root_;
  const SpanAbove* const above = known_.root(root);
  last_root_ = root;
  return of_last_root_ = above == nullptr ? kNone : unit_below(*above, -1, root);
}

uint32_t PlannedRows::unit_below(const SpanAbove& above, int64_t context, uint64_t root) {
  OpenUnit& unit = open_units_.below(above);
  if (unit.in_batch == kNone) {
    unit.in_batch = static_cast<uint32_t>(units.size());
    units.push_back({above, root, context, 0, 0, INT64_MAX, 0, 0, 0});
    open.push_back(&unit);
  }
  return unit.in_batch;
}

}  // namespace recfn::stage
