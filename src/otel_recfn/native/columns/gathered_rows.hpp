// Rows of several batches, put together.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Adds `gather_rows` to the module.
int add_gathering(PyObject* module);

}  // namespace recfn
