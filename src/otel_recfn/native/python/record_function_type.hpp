// `record_function` as a C type: entering and leaving it is the recording hot path of Python programs.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

int add_record_function_type(PyObject* module);

}  // namespace recfn
