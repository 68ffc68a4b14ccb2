// Calls a Python function a little later, from a thread that Python learns of only then.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its function to the extension module. Returns 0, or -1 with a Python error set.
int add_call_later(PyObject* module);

}  // namespace recfn
