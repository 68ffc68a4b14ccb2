// The one look at Python from an operator's thread: what is current there, by a reader written in Python.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

int add_context_reader(PyObject* module);

}  // namespace recfn
