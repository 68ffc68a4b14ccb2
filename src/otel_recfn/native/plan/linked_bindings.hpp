// What the spans of rows link to, for Python.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its functions to the extension module. Returns 0, or -1 with a Python error set.
int add_linked(PyObject* module);

}  // namespace recfn
