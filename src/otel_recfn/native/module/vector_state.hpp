// Tidies up the vector registers after igzip.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds its functions to the extension module. Returns 0, or -1 with a Python error set.
int add_vector_state(PyObject* module);

}  // namespace recfn
