#include "stage/linked_spans.hpp"

#include <algorithm>
#include <utility>

#include "model/events.hpp"

namespace recfn::stage {
namespace {

uint64_t key_of(uint64_t thread_id, int64_t sequence_nr) { return thread_id << kOrdinalBits | static_cast<uint64_t>(sequence_nr); }

}  // namespace

TellingSpans::Item* TellingSpans::item(Table& table, uint64_t event_id) {
  return table.find(event_id, [event_id](const Item& one) { return one.event_id == event_id; });
}

void TellingSpans::add(uint64_t event_id, uint64_t span_id) {
  if (event_id == 0) return;
  if (Item* known = item(newer_, event_id)) {
    known->span_id = span_id;
    return;
  }
  if (newer_.size() >= kMostOfATable) {
    older_ = std::move(newer_);
    newer_ = Table{};
  }
  newer_.insert({event_id, span_id});
}

uint64_t TellingSpans::find(uint64_t event_id) {
  const Item* found = item(newer_, event_id);
  if (found == nullptr) found = item(older_, event_id);
  return found == nullptr ? 0 : found->span_id;
}

void LinkedSpans::add(const BatchRows& rows, const Surroundings& known, const PlannedRows& planned, int64_t first_row) {
  bool any_backward = false;
  for (size_t at = 0; at < planned.row.size(); ++at) {
    const auto row = static_cast<Py_ssize_t>(planned.row[at]);
    if (!rows.has_sequence(row)) continue;
    if (rows.forward_thread_id[row] != 0) {
      any_backward |= rows.is_of_backward(row);
    } else if (!rows.is_of_backward(row)) {
      const uint64_t key = key_of(known.threads[rows.thread[row]], rows.sequence_nr[row]);
      const SpanAbove& above = planned.units[static_cast<size_t>(planned.unit[at])].above;
      forward_.remember({key, rows.event_id[row], rows.start_ns[row], above, false});
    }
  }
  if (any_backward) {
    for (size_t at = 0; at < planned.row.size(); ++at) {
      const auto row = static_cast<Py_ssize_t>(planned.row[at]);
      if (rows.forward_thread_id[row] == 0 || !rows.has_sequence(row) || !rows.is_of_backward(row)) continue;
      const ForwardSpan* const found = forward_.match(key_of(rows.forward_thread_id[row], rows.sequence_nr[row]));
      if (found != nullptr) links_.push_back({first_row + static_cast<int64_t>(at), found->event_id, found->above});
    }
  }
  forget_some();
}

void LinkedSpans::forget_some() {
  if (forward_.matched() > kMostMatched) forward_.forget_first(forward_.matched() - kMostMatched / 4 * 3, true);
  if (forward_.size() > kMostForward) forward_.forget_first(forward_.size() - kMostForward / 4 * 3, false);
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
