// Removes hidden files when SIGTERM ends the process.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its functions to the extension module. Returns 0, or -1 with a Python error set.
int add_sigterm(PyObject* module);

}  // namespace recfn
