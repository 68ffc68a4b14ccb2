// The drain as Python sees it: what it read, handed over as columns and tables.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

int add_drain(PyObject* module);

}  // namespace recfn
