#include "plan/outermost.hpp"

#include "columns/equally_long.hpp"
#include "model/events.hpp"

namespace recfn {

bool RowsThatEnded::take(PyObject* batch) {
  return kind.take(batch, "kind") && event_id.take(batch, "event_id") && parent.take(batch, "parent") &&
         equally_long({kind.size(), event_id.size(), parent.size()});
}

void RowsThatEnded::find_outermost(UnfilledVector<uint64_t>& event_ids) const {
  for (Py_ssize_t row = 0; row < size(); ++row) {
    if (parent[row] == 0 && kind[row] == kRangeEvent) event_ids.push_back(event_id[row]);
  }
}

bool BegunRanges::find(const AnnouncedRanges& announced, size_t contexts) {
  of_context.resize(contexts);
  for (Py_ssize_t at = 0; at < announced.size(); ++at) {
    if (announced.source[at] == kStepSource) continue;
    if (announced.context[at] >= contexts) return false;
    event_id.push_back(announced.event_id[at]);
    ++of_context[announced.context[at]];
  }
  return true;
}

bool RowsInOrder::take(PyObject* batch) {
  return end_ns.take(batch, "end_ns") && event_id.take(batch, "event_id") && parent.take(batch, "parent") &&
         equally_long({end_ns.size(), event_id.size(), parent.size()});
}

bool RowsInOrder::cross() const {
  bool ordered = true;
  for (Py_ssize_t row = 1; row < size() && ordered; ++row) ordered = end_ns[row] >= end_ns[row - 1];
  if (ordered) return false;
  for (Py_ssize_t row = 0; row < size(); ++row) {
    if (parent[row] != 0 && ((parent[row] ^ event_id[row]) >> kOrdinalBits) != 0) return true;
  }
  return false;
}

}  // namespace recfn
