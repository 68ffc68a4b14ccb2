// CPython's profile function, which it calls at each call and return of the threads that have it.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// What `PyEval_SetProfile` takes. The object is of no use.
int on_profile_event(PyObject* object, PyFrameObject* frame, int what, PyObject* argument);

}  // namespace recfn
