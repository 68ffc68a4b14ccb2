// Ranges that a plan of spans has, as they stand in a batch, for a Fold.
#pragma once
#include "cpython/python.hpp"

#include <cstdint>

#include "columns/column_view.hpp"
#include "fold/range.hpp"

namespace recfn {

// As Python's `PlannedRanges` (`batches/fold/units.py`).
class RangesOfPlan {
 public:
  // `given`: that tuple's items.
  bool take(PyObject* given, int64_t first_row);
  // Whether all that is indexed is there; an IndexError is set where it isn't.
  bool are_known() const;

  Py_ssize_t size() const { return row_.size(); }
  uint32_t unit_of(Py_ssize_t at) const { return unit_[static_cast<Py_ssize_t>(above_[at])]; }

  folding::Range operator[](Py_ssize_t at) const {
    const auto row = static_cast<Py_ssize_t>(row_[at]);
    const int64_t start_ns = start_ns_[row], duration_ns = wrapped_difference(end_ns_[row], start_ns);
    const uint64_t event_id = event_id_[row];
    return {event_id, parent_[at], start_ns, duration_ns < 0 ? 0 : duration_ns, name_[static_cast<Py_ssize_t>(names_[row])],
            flags(row, event_id), wrapped_sum(first_row_, at)};
  }

 private:
  uint32_t flags(Py_ssize_t row, uint64_t event_id) const;
  bool is_shown(uint64_t event_id) const;
  bool take_batch(PyObject* batch);

  ColumnView<int64_t> row_, above_;
  ColumnView<uint64_t> parent_, shown_;
  ColumnView<uint32_t> unit_, name_;
  // Of the batch:
  ColumnView<uint64_t> event_id_;
  ColumnView<int64_t> start_ns_, end_ns_, sequence_nr_;
  ColumnView<uint32_t> names_, flags_;
  ColumnView<uint8_t> scope_;
  int64_t first_row_ = 0;
};

}  // namespace recfn
