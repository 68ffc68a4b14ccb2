// A Python string as UTF-8, cut at a character: without a copy where Python holds it already.
#pragma once
#include "cpython/python.hpp"
#include "core/begin_end.hpp"
#include "core/record.hpp"

namespace recfn {

class Utf8 {
 public:
  Utf8(PyObject* string, uint32_t max_bytes) : whole_(string) {
    const std::string_view text = whole_.text();
    if (text.data() != nullptr) text_ = {text.data(), cut_at_character(text.data(), text.size(), max_bytes)};
    if (text.data() == nullptr && string != nullptr) PyErr_Clear();
  }

  Text text() const { return text_; }

 private:
  Utf8Text whole_;
  Text text_;
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
