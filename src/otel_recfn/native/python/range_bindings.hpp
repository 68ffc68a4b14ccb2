// Ranges, marks and changes of memory that Python begins and ends by their ids.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

int add_ranges(PyObject* module);

}  // namespace recfn
