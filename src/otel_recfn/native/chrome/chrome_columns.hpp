// The columns of a batch, as Python holds them.
#pragma once
#include "columns/column_view.hpp"
#include "cpython/python.hpp"
#include "model/columns.hpp"
#include "model/events.hpp"

#include <cstddef>
#include <cstdint>

namespace recfn {

struct ChromeColumns {
#define RECFN_VIEW(type, name, ...) ColumnView<type> name;
  RECFN_EACH_COLUMN(RECFN_VIEW)
#undef RECFN_VIEW

  bool take(PyObject* batch);
  Py_ssize_t size() const { return event_id.size(); }

  bool is_range(Py_ssize_t row) const { return kind[row] == kRangeEvent; }
  bool is_memory(Py_ssize_t row) const { return kind[row] == kMemoryEvent; }
  // What may end elsewhere or out of turn: as a slice it could overlap others of its thread.
  bool is_async(Py_ssize_t row) const { return (flags[row] & kOverlapping) != 0 || thread[row] != end_thread[row]; }
  bool is_partial(Py_ssize_t row) const { return (flags[row] & kPartial) != 0; }
};

}  // namespace recfn
