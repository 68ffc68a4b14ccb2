#include "python/fold_arguments.hpp"

#include <initializer_list>

namespace recfn {

bool read_whole(PyObject* number, int64_t* value) {
  const Made whole(PyNumber_Index(number));
  if (whole.object == nullptr) return false;
  int beyond = 0;
  const long long found = PyLong_AsLongLongAndOverflow(whole.object, &beyond);
  *value = beyond > 0 ? INT64_MAX : beyond < 0 ? INT64_MIN : static_cast<int64_t>(found);
  return true;
}

bool read_unit(PyObject* number, uint32_t* unit) {
  int64_t value = 0;
  if (!read_whole(number, &value)) return false;
  *unit = static_cast<uint32_t>(value);
  if (value >= 0 && value <= UINT32_MAX) return true;
  PyErr_Format(PyExc_ValueError, "%R is no unit: their numbers have 32 bits", number);
  return false;
}

bool FoldRows::take(PyObject* const* given) {
  return unit.take(given[0], "unit", nullptr) && event_id.take(given[1], "event_id", nullptr) &&
         parent.take(given[2], "parent", nullptr) && name.take(given[3], "name", nullptr) &&
         start_ns.take(given[4], "start_ns", nullptr) && duration_ns.take(given[5], "duration_ns", nullptr) &&
         flags.take(given[6], "flags", nullptr) && read_whole(given[7], &first_row) && equally_long();
}

bool FoldRows::equally_long() const {
  const Py_ssize_t count = unit.size();
  const auto sizes = {event_id.size(), parent.size(), name.size(), start_ns.size(), duration_ns.size(), flags.size()};
  for (const Py_ssize_t other : sizes) {
    if (other == count) continue;
    PyErr_Format(PyExc_ValueError, "columns of %zd and %zd rows; a row has one value in each", count, other);
    return false;
  }
  return true;
}

}  // namespace recfn
