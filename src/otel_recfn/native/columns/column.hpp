// A column handed to Python without a copy: an object with the buffer protocol that owns or shares the memory.
#pragma once
#include "columns/owned_bytes.hpp"
#include "cpython/python.hpp"

#include <utility>

namespace recfn {

int add_column_type(PyObject* module);
PyObject* new_column(OwnedBytes&& bytes);

// False with an error set where it is none, or there is no memory for a column.
template <typename Vector>
bool put_column(PyObject* tuple, Py_ssize_t place, Vector& items) {
  PyObject* column = tuple == nullptr ? nullptr : new_column(std::move(items));
  if (column != nullptr) PyTuple_SET_ITEM(tuple, place, column);
  return column != nullptr;
}

// Takes the vectors.
template <typename... Vectors>
PyObject* column_tuple(Vectors&... columns) {
  PyObject* tuple = PyTuple_New(sizeof...(columns));
  Py_ssize_t place = 0;
  if (!(put_column(tuple, place++, columns) && ...)) Py_CLEAR(tuple);
  return tuple;
}

}  // namespace recfn
