// A reference that is given back when nobody needs it any more.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Owns a reference, or null, which says that making the object failed.
struct Made {
  PyObject* object;
  explicit Made(PyObject* made) : object(made) {}
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() { Py_XDECREF(object); }
};

}  // namespace recfn
