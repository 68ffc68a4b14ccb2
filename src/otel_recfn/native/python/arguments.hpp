// What Python's functions of ours are called with: arguments, and texts as UTF-8.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "recording/begin_end.hpp"
#include "core/record.hpp"
#include "cpython/python.hpp"

namespace recfn {

// The arguments of a function that our own code calls often: taken from where the interpreter has
// them, only those that were given.
template <size_t N>
class Arguments {
 public:
  using Names = const char* const[N];

  explicit Arguments(const Names& names) : names_(names) {}

  // As METH_FASTCALL | METH_KEYWORDS hands them in. False with an error set where there is no such
  // parameter.
  bool take(PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    if (static_cast<size_t>(count) > N) {
      PyErr_Format(PyExc_TypeError, "more than %zu arguments", N);
      return false;
    }
    std::copy(args, args + count, values_);
    const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t at = 0; at < named; ++at) {
      if (!take_named(PyTuple_GET_ITEM(keywords, at), args[count + at])) return false;
    }
    return true;
  }

  // Of each type: what was given, else what stands in the place already. False with an error set
  // where it is no number.
  bool read(size_t at, PyObject** object) const {
    if (values_[at] != nullptr) *object = values_[at];
    return true;
  }
  bool read(size_t at, uint64_t* number) const {
    if (values_[at] == nullptr) return true;
    *number = PyLong_AsUnsignedLongLongMask(values_[at]);
    return *number != UINT64_MAX || PyErr_Occurred() == nullptr;
  }
  bool read(size_t at, uint32_t* number) const {
    uint64_t wide = *number;
    const bool read_wide = read(at, &wide);
    *number = static_cast<uint32_t>(wide);
    return read_wide;
  }
  bool read(size_t at, int64_t* number) const {
    if (values_[at] == nullptr) return true;
    *number = PyLong_AsLongLong(values_[at]);
    return *number != -1 || PyErr_Occurred() == nullptr;
  }

 private:
  bool take_named(PyObject* name, PyObject* value) {
    for (size_t at = 0; at < N; ++at) {
      if (PyUnicode_CompareWithASCIIString(name, names_[at]) != 0) continue;
      values_[at] = value;
      return true;
    }
    PyErr_Format(PyExc_TypeError, "there is no parameter %R", name);
    return false;
  }

  const Names& names_;
  PyObject* values_[N] = {};
};

// A method table's entry for a function that takes its arguments by position or by name.
using FunctionWithNames = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

inline PyMethodDef with_names(const char* name, FunctionWithNames function,
                              const char* documentation) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)),
          METH_FASTCALL | METH_KEYWORDS, documentation};
}

// A string as UTF-8, cut at a character: without a copy where Python holds it already.
class Utf8 {
 public:
  [[gnu::always_inline]] Utf8(PyObject* string, uint32_t max_bytes) : whole_(string) {
    if (string == nullptr) return;
    const std::string_view text = whole_.text();
    if (__builtin_expect(text.data() != nullptr, 1)) {
      text_ = {text.data(), cut_at_character(text.data(), text.size(), max_bytes)};
    } else {
      PyErr_Clear();
    }
  }

  Text text() const { return text_; }

 private:
  Utf8Text whole_;
  Text text_;
};

// What a range was left by, as support/exceptions.py tells it; null and empty where it ended well.
class FailureTexts {
 public:
  FailureTexts(PyObject* error, PyObject* stacktrace)
      : error_(error, kMaxErrorBytes),
        stacktrace_(failed() ? stacktrace : nullptr, kMaxStacktraceBytes) {}

  Ending ending(int64_t cpu_time_ns) const {
    return {cpu_time_ns, 0, error_.text(), stacktrace_.text()};
  }
  uint32_t flags() const { return failed() ? uint32_t{kError} : 0; }

 private:
  bool failed() const { return error_.text().size > 0; }

  Utf8 error_;  // the first member: only where there is one the stack trace is read
  Utf8 stacktrace_;
};

}  // namespace recfn
