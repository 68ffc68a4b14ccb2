// Columns for Python, several at once.
#pragma once
#include "columns/column.hpp"
#include "cpython/python.hpp"

#include <cstddef>
#include <utility>
#include <vector>

namespace recfn {

inline PyObject* column_tuple(std::vector<std::vector<char>>& columns) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(columns.size()));
  for (size_t at = 0; tuple != nullptr && at < columns.size(); ++at) {
    PyObject* column = new_column(std::move(columns[at]));
    if (column == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(at), column);
    }
  }
  return tuple;
}

}  // namespace recfn
