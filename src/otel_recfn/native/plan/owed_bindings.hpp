// Which ranges rows lie in that have not come yet, as Python asks for it.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its function to the extension module. Returns 0, or -1 with a Python error set.
int add_owed(PyObject* module);

}  // namespace recfn
