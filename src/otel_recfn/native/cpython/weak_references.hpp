// Asking a weak reference, which every CPython has another function for.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

inline bool refers_to_living(PyObject* weak_reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* referent = nullptr;
  const bool alive = PyWeakref_GetRef(weak_reference, &referent) == 1;
  Py_XDECREF(referent);
  return alive;
#else
  return PyWeakref_GetObject(weak_reference) != Py_None;
#endif
}

}  // namespace recfn
