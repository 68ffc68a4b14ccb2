// What becomes of rows, as Python sees it.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its functions to the extension module. Returns 0, or -1 with a Python error set.
int add_plan(PyObject* module);

}  // namespace recfn
