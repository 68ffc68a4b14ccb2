// What Python gives to a Fold, read.
#pragma once
#include "cpython/python.hpp"

#include <cstdint>

#include "columns/column_view.hpp"
#include "cpython/made.hpp"
#include "fold/range.hpp"

namespace recfn {

// A whole number; one that is too large for the machine as the largest that isn't. False with an error set where it is none.
bool read_whole(PyObject* number, int64_t* value);
bool read_unit(PyObject* number, uint32_t* unit);

// The items of a sequence, which nobody else can change.
class Items {
 public:
  explicit Items(PyObject* sequence) : items_(PySequence_Tuple(sequence)) {}
  explicit operator bool() const { return items_.object != nullptr; }
  Py_ssize_t size() const { return PyTuple_GET_SIZE(items_.object); }
  PyObject* operator[](Py_ssize_t at) const { return PyTuple_GET_ITEM(items_.object, at); }

 private:
  Made items_;
};

// The columns of rows to add.
struct FoldRows {
  ColumnView<uint32_t> unit;
  ColumnView<uint64_t> event_id, parent;
  ColumnView<uint32_t> name;
  ColumnView<int64_t> start_ns, duration_ns;
  ColumnView<uint32_t> flags;

  int64_t first_row = 0;

  bool take(PyObject* const* given);

  Py_ssize_t size() const { return event_id.size(); }
  uint32_t unit_of(Py_ssize_t row) const { return unit[row]; }

  folding::Range operator[](Py_ssize_t row) const {
    return {event_id[row], parent[row], start_ns[row], duration_ns[row], name[row], flags[row], wrapped_sum(first_row, row)};
  }

 private:
  bool equally_long() const;
};

}  // namespace recfn
