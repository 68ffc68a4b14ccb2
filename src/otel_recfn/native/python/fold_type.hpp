// Folding as Python sees it: columns in, and columns out.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

int add_fold_type(PyObject* module);

}  // namespace recfn
