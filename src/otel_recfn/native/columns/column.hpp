// A column handed to Python without a copy: an object with the buffer protocol that owns the vector.
#pragma once
#include "cpython/python.hpp"

#include <vector>

namespace recfn {

int add_column_type(PyObject* module);
PyObject* new_column(std::vector<char>&& bytes);

}  // namespace recfn
