#pragma once
#include "cpython/python.hpp"

namespace recfn {

int add_stage_type(PyObject* module);

}  // namespace recfn
