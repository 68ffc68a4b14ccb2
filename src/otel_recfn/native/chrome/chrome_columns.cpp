#include "chrome/chrome_columns.hpp"

#include <initializer_list>

namespace recfn {

bool ChromeColumns::take(PyObject* batch) {
#define RECFN_TAKE(type, name, empty) name.take(batch, #name) &&
  return RECFN_COLUMNS(RECFN_TAKE) equally_long();
#undef RECFN_TAKE
}

bool ChromeColumns::equally_long() const {
  const Py_ssize_t n = size();
#define RECFN_SIZE(type, name, empty) name.size(),
  for (const Py_ssize_t other : {RECFN_COLUMNS(RECFN_SIZE)}) {
#undef RECFN_SIZE
    if (other == n) continue;
    PyErr_Format(PyExc_ValueError, "columns of %zd and %zd rows; a batch's columns are equally long", n, other);
    return false;
  }
  return true;
}

}  // namespace recfn
