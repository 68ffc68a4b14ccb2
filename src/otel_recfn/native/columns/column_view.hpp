// One column of a batch through the buffer protocol, contiguous or not. Taken and released with the GIL held.
#pragma once
#include "cpython/python.hpp"

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace recfn {

template <typename T>
class ColumnView {
 public:
  ColumnView() = default;
  ColumnView(const ColumnView&) = delete;
  ColumnView& operator=(const ColumnView&) = delete;
  ~ColumnView() {
    if (held_) PyBuffer_Release(&view_);
  }

  bool take(PyObject* owner, const char* name) {
    PyObject* array = PyObject_GetAttrString(owner, name);
    if (array == nullptr) return false;
    const bool taken = take(array, name, nullptr);
    Py_DECREF(array);
    return taken;
  }

  bool take(PyObject* array, const char* name, std::nullptr_t) {
    if (PyObject_GetBuffer(array, &view_, PyBUF_STRIDED_RO | PyBUF_FORMAT) < 0) return false;
    held_ = true;
    if (view_.ndim == 1 && view_.itemsize == static_cast<Py_ssize_t>(sizeof(T)) && is_format_of_type()) return true;
    PyErr_Format(PyExc_TypeError,
                 "column %s has items of %zd bytes and format %s in %d dimensions; pass one dimension of %sint%zu", name,
                 view_.itemsize, view_.format == nullptr ? "B" : view_.format, view_.ndim, std::is_signed_v<T> ? "" : "u",
                 8 * sizeof(T));
    return false;
  }

  // The same column as another view's.
  bool take_same(const ColumnView& other) { return take(other.view_.obj, "the same", nullptr); }

  Py_ssize_t size() const { return view_.shape[0]; }

  T operator[](Py_ssize_t row) const {
    T value;
    std::memcpy(&value, static_cast<const char*>(view_.buf) + row * view_.strides[0], sizeof(T));
    return value;
  }

 private:
  // Of the machine's byte order. Which letters there are for numbers of one size depends on the platform.
  bool is_format_of_type() const {
    const char* format = view_.format == nullptr ? "B" : view_.format;
    if (*format == '@' || *format == '=') ++format;
    return *format != 0 && std::strchr(std::is_signed_v<T> ? "bhilqn" : "BHILQN", *format) != nullptr && format[1] == 0;
  }

  Py_buffer view_{};
  bool held_ = false;
};

}  // namespace recfn
