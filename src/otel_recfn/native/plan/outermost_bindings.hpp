// Outermost ranges of a batch, and whether its rows stand in order, for Python.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its functions to the extension module. Returns 0, or -1 with a Python error set.
int add_outermost(PyObject* module);

}  // namespace recfn
