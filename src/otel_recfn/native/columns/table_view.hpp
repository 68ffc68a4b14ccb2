// A table of Python's through the buffer protocol: rows of one type, one after the other. Taken and released with the GIL held.
#pragma once
#include "cpython/python.hpp"

#include <cstddef>

namespace recfn {

template <typename Row>
class TableView {
 public:
  TableView() = default;
  TableView(const TableView&) = delete;
  TableView& operator=(const TableView&) = delete;
  ~TableView() {
    if (held_) PyBuffer_Release(&view_);
  }

  bool take(PyObject* table, const char* name) {
    if (PyObject_GetBuffer(table, &view_, PyBUF_ND) < 0) return false;
    held_ = true;
    if (view_.ndim == 1 && view_.itemsize == static_cast<Py_ssize_t>(sizeof(Row))) return true;
    PyErr_Format(PyExc_TypeError, "table %s has rows of %zd bytes in %d dimensions; pass one dimension of %zu bytes", name,
                 view_.itemsize, view_.ndim, sizeof(Row));
    return false;
  }

  size_t size() const { return held_ ? static_cast<size_t>(view_.shape[0]) : 0; }
  const Row* begin() const { return static_cast<const Row*>(view_.buf); }
  const Row* end() const { return begin() + size(); }
  const Row& operator[](size_t row) const { return begin()[row]; }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

}  // namespace recfn
