// The tracer of Python calls, as Python sees it.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

int add_call_tracer(PyObject* module);

}  // namespace recfn
