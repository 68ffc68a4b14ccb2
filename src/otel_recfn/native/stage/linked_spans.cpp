#include "stage/linked_spans.hpp"

#include <algorithm>

namespace recfn::stage {

void TellingSpans::add(uint64_t event_id, uint64_t span_id) {
  if (event_id == 0) return;
  if (OfId<uint64_t>* const known = newer_.find(event_id)) {
    known->value = span_id;
    return;
  }
  if (newer_.size() >= kMostOfATable) older_ = std::exchange(newer_, {});
  newer_.insert({event_id, span_id});
}

uint64_t TellingSpans::find(uint64_t event_id) {
  const OfId<uint64_t>* found = newer_.find(event_id);
  if (found == nullptr) found = older_.find(event_id);
  return found == nullptr ? 0 : found->value;
}

void LinkedSpans::add(const ToAdd& batch, const PlannedRows& planned, int64_t first_row) {
  const auto row_at = [&](size_t at) { return static_cast<Py_ssize_t>(planned.row[at]); };
  const auto above = [&](size_t at) { return planned.units[static_cast<size_t>(planned.unit[at])].above; };
  forward_.link(batch.rows, batch.known.threads, planned.row.size(), row_at, above, [&](size_t at, const auto& forward) {
    links_.push_back({first_row + static_cast<int64_t>(at), forward.event_id, forward.of});
  });
}

void LinkedSpans::keep(const std::vector<int64_t>& kept) {
  auto next = kept.begin();
  const auto is_gone = [&](const RowLink& link) {
    while (next != kept.end() && *next < link.row) ++next;
    return next == kept.end() || *next != link.row;
  };
  links_.erase(std::remove_if(links_.begin(), links_.end(), is_gone), links_.end());
  most_ = 2 * links_.size() + kToSpare;
}

const RowLink* LinkedSpans::find(int64_t row) const {
  const auto is_before = [](const RowLink& one, int64_t number) { return one.row < number; };
  const auto found = std::lower_bound(links_.begin(), links_.end(), row, is_before);
  return found != links_.end() && found->row == row ? &*found : nullptr;
}

}  // namespace recfn::stage
