// Columns of one batch have the same length.
#pragma once
#include "cpython/python.hpp"

#include <initializer_list>

namespace recfn {

inline bool equally_long(std::initializer_list<Py_ssize_t> sizes) {
  for (const Py_ssize_t size : sizes) {
    if (size == *sizes.begin()) continue;
    PyErr_SetString(PyExc_ValueError, "columns of different lengths; a batch's columns are equally long");
    return false;
  }
  return true;
}

}  // namespace recfn
