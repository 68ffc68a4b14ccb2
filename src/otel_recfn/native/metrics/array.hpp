// An array of Python's that is written to, contiguous, with its buffer held. Taken and released with the GIL held.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

template <typename T>
class Array {
 public:
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() {
    if (held_) PyBuffer_Release(&view_);
  }

  bool take(PyObject* array, const char* name) {
    if (PyObject_GetBuffer(array, &view_, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0) return false;
    held_ = true;
    if (view_.itemsize == static_cast<Py_ssize_t>(sizeof(T))) return true;
    PyErr_Format(PyExc_TypeError, "%s has items of %zd bytes; pass items of %zu bytes", name, view_.itemsize, sizeof(T));
    return false;
  }

  // How many numbers it has, in all dimensions.
  Py_ssize_t size() const { return view_.len / static_cast<Py_ssize_t>(sizeof(T)); }
  T* data() const { return static_cast<T*>(view_.buf); }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

}  // namespace recfn
