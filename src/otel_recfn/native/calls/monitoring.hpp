// What `sys.monitoring` (CPython 3.12 and later) calls at each call and return, in every thread.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// A new dict: the callbacks by the names of the events; null with the error set.
PyObject* monitoring_callbacks();

}  // namespace recfn
