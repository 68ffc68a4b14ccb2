// A Python string as UTF-8, cut at a character: without a copy where Python holds it already.
#pragma once
#include "cpython/python.hpp"
#include "core/begin_end.hpp"
#include "core/record.hpp"

namespace recfn {

class Utf8 {
 public:
  Utf8(PyObject* string, uint32_t max_bytes) {
    if (string == nullptr) return;
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(string, &size);
    if (data == nullptr) data = escaped(string, size);
    if (data == nullptr) return;
    text_ = {data, cut_at_character(data, static_cast<uint64_t>(size), max_bytes)};
  }
  ~Utf8() { Py_XDECREF(owned_); }
  Utf8(const Utf8&) = delete;
  Utf8& operator=(const Utf8&) = delete;

  Text text() const { return text_; }

 private:
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

// What a range was left by, as support/texts.py tells it; null and empty where it ended well.
class FailureTexts {
 public:
  FailureTexts(PyObject* error, PyObject* stacktrace)
      : failed_(error != nullptr && PyUnicode_GET_LENGTH(error) > 0),
        error_(error, kMaxErrorBytes),
        stacktrace_(failed_ ? stacktrace : nullptr, kMaxStacktraceBytes) {}

  Failure failure() const { return {error_.text(), stacktrace_.text()}; }
  uint32_t flags() const { return failed_ ? uint32_t{kError} : 0; }

 private:
  bool failed_;
  Utf8 error_, stacktrace_;
};

}  // namespace recfn
