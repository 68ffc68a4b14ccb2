// Tells of each call of a Python function, at its begin and its end, and leaves the function as it is.
//
// A function has a pointer to what runs it, which CPython lets be replaced (PyFunction_SetVectorcall). Code, attributes and
// identity stay the same, no frame is added, and whoever compiles or traces the function sees what it would see.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Calls a function of ours where whoever compiles the thread's frames (Dynamo) doesn't see it, as long as calls are watched.
PyObject* call_unseen(PyObject* function, PyObject* const* args, size_t count);

}  // namespace recfn
