// The encoder of OTLP spans as Python sees it.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its function to the extension module. Returns 0, or -1 with a Python error set.
int add_otlp_encoder(PyObject* module);

}  // namespace recfn
