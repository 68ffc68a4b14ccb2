// A Python string as UTF-8, cut at a character: without a copy where Python holds it already.
#pragma once
#include "cpython/python.hpp"
#include "core/thread_buffer.hpp"

namespace recfn {

class Utf8 {
 public:
  Utf8(PyObject* string, uint32_t max_bytes) {
    if (string == nullptr) return;
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(string, &size);
    if (data == nullptr) data = escaped(string, size);
    if (data == nullptr) return;
    while (size > static_cast<Py_ssize_t>(max_bytes)) size = cut(data, max_bytes);
    text_ = {data, static_cast<uint32_t>(size)};
  }
  ~Utf8() { Py_XDECREF(owned_); }
  Utf8(const Utf8&) = delete;
  Utf8& operator=(const Utf8&) = delete;

  Text text() const { return text_; }

 private:
  static Py_ssize_t cut(const char* data, Py_ssize_t size) {
    while (size > 0 && (data[size] & 0xC0) == 0x80) --size;
    return size;
  }

  // Lone surrogates have no UTF-8.
  const char* escaped(PyObject* string, Py_ssize_t& size) {
    PyErr_Clear();
    owned_ = PyUnicode_AsEncodedString(string, "utf-8", "backslashreplace");
    if (owned_ == nullptr) return PyErr_Clear(), nullptr;
    size = PyBytes_GET_SIZE(owned_);
    return PyBytes_AS_STRING(owned_);
  }

  Text text_;
  PyObject* owned_ = nullptr;
};

}  // namespace recfn
