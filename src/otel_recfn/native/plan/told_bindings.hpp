// What spans say of folded ranges, as Python asks for it.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its function to the extension module. Returns 0, or -1 with a Python error set.
int add_told(PyObject* module);

}  // namespace recfn
