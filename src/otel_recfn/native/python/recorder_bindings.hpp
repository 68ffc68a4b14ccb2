// The recorder as Python sees it.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its functions and types to the extension module. Returns 0, or -1 with a Python error set.
int add_recorder(PyObject* module);

}  // namespace recfn
