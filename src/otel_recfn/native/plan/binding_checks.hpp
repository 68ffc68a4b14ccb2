// What Python's sides of planning share.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

inline bool is_long(Py_ssize_t rows) { return rows > 20'000; }  // which take some 0.1 ms

// False, with an error set, where a row indexes nothing.
inline bool is_known(bool known) {
  if (!known) PyErr_SetString(PyExc_IndexError, "a row indexes nothing; its context and outermost range have to be known");
  return known;
}

}  // namespace recfn
