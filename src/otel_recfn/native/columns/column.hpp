// A column handed to Python without a copy: an object with the buffer protocol that owns the vector.
#pragma once
#include "columns/owned_vector.hpp"
#include "cpython/python.hpp"

namespace recfn {

int add_column_type(PyObject* module);
PyObject* new_column(OwnedVector&& items);

}  // namespace recfn
