// A column handed to Python without a copy: an object with the buffer protocol that owns or shares the memory.
#pragma once
#include "columns/owned_bytes.hpp"
#include "cpython/python.hpp"

namespace recfn {

int add_column_type(PyObject* module);
PyObject* new_column(OwnedBytes&& bytes);

}  // namespace recfn
