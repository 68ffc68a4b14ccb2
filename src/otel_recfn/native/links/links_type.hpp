// `ForwardRanges` for Python.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

int add_links_type(PyObject* module);

}  // namespace recfn
