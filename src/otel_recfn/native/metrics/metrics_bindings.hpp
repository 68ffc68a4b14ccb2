// Sums of durations as Python sees them.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its functions to the extension module. Returns 0, or -1 with a Python error set.
int add_metrics(PyObject* module);

}  // namespace recfn
