#include "python/ranges_of_plan.hpp"

#include "columns/equally_long.hpp"
#include "model/events.hpp"

namespace recfn {

bool RangesOfPlan::take(PyObject* given, int64_t first_row) {
  PyObject *batch, *row, *parent, *above, *unit, *name, *shown;
  first_row_ = first_row;
  return PyArg_ParseTuple(given, "OOOOOOO", &batch, &row, &parent, &above, &unit, &name, &shown) && take_batch(batch) &&
         row_.take(row, "row", nullptr) && parent_.take(parent, "parent", nullptr) && above_.take(above, "above", nullptr) &&
         unit_.take(unit, "unit", nullptr) && name_.take(name, "name", nullptr) && shown_.take(shown, "shown", nullptr) &&
         equally_long({row_.size(), parent_.size(), above_.size()});
}

bool RangesOfPlan::take_batch(PyObject* batch) {
  return event_id_.take(batch, "event_id") && start_ns_.take(batch, "start_ns") && end_ns_.take(batch, "end_ns") &&
         sequence_nr_.take(batch, "sequence_nr") && names_.take(batch, "name") && flags_.take(batch, "flags") &&
         scope_.take(batch, "scope") &&
         equally_long({event_id_.size(), start_ns_.size(), end_ns_.size(), sequence_nr_.size(), names_.size(), flags_.size(),
                       scope_.size()});
}

bool RangesOfPlan::are_known() const {
  const auto rows = static_cast<uint64_t>(event_id_.size()), units = static_cast<uint64_t>(unit_.size());
  const auto names = static_cast<uint64_t>(name_.size());
  bool known = true;
  for (Py_ssize_t at = 0; at < size() && known; ++at) {
    const auto row = static_cast<uint64_t>(row_[at]);  // of what is negative, more than there are
    known = row < rows && static_cast<uint64_t>(above_[at]) < units && names_[static_cast<Py_ssize_t>(row)] < names;
  }
  if (!known) PyErr_SetString(PyExc_IndexError, "a row of the plan indexes nothing; its batch, unit and name have to be there");
  return known;
}

uint32_t RangesOfPlan::flags(Py_ssize_t row, uint64_t event_id) const {
  const bool is_linkable = sequence_nr_[row] >= 0 && scope_[row] != kBackwardFunctionScope;
  const uint32_t shown = shown_.size() != 0 && is_shown(event_id) ? uint32_t{kShown} : 0;
  return flags_[row] | shown | (is_linkable ? folding::kLinkable : 0);
}

bool RangesOfPlan::is_shown(uint64_t event_id) const {
  Py_ssize_t first = 0, last = shown_.size();
  while (first < last) {
    const Py_ssize_t middle = (first + last) / 2;
    (shown_[middle] < event_id ? first : last) = shown_[middle] < event_id ? middle + 1 : middle;
  }
  return first < shown_.size() && shown_[first] == event_id;
}

}  // namespace recfn
