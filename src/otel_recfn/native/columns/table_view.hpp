// A table of Python's through the buffer protocol: rows of one type, one after the other; rows that aren't const are written to.
// Taken and released with the GIL held.
#pragma once
#include "cpython/python.hpp"

#include <cstddef>
#include <type_traits>

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
    if (PyObject_GetBuffer(table, &view_, std::is_const_v<Row> ? PyBUF_ND : PyBUF_ND | PyBUF_WRITABLE) < 0) return false;
    held_ = true;
    if (view_.itemsize == static_cast<Py_ssize_t>(sizeof(Row))) return true;
    PyErr_Format(PyExc_TypeError, "%s has items of %zd bytes; pass items of %zu bytes", name, view_.itemsize, sizeof(Row));
    return false;
  }

  // How many rows it has, in all dimensions.
  size_t size() const { return held_ ? static_cast<size_t>(view_.len) / sizeof(Row) : 0; }
  Row* begin() const { return static_cast<Row*>(view_.buf); }
  Row* end() const { return begin() + size(); }
  Row& operator[](size_t row) const { return begin()[row]; }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

}  // namespace recfn
