// The encoder of Chrome events as Python sees it.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its functions to the extension module. Returns 0, or -1 with a Python error set.
int add_chrome_encoder(PyObject* module);

}  // namespace recfn
