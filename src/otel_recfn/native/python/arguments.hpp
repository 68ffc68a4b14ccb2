// What Python's functions of ours are called with: arguments, and texts as UTF-8.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/begin_end.hpp"
#include "core/record.hpp"
#include "cpython/python.hpp"

namespace recfn {

// Calls a function of ours where whoever compiles the thread's frames (Dynamo) doesn't see it.
PyObject* call_unseen(PyObject* function, PyObject* const* args, size_t count);

// The arguments of a function that is called often: taken from where the interpreter has them, only those that were given. Of N
// parameters the first `required` have to be given, and `by_position` of them may be without their names.
template <size_t N>
class Arguments {
 public:
  struct Parameters {
    const char* function;
    size_t required, by_position;
    const char* names[N];
  };

  explicit Arguments(const Parameters& parameters) : parameters_(parameters) {}

  // As METH_FASTCALL | METH_KEYWORDS hands them in. False with an error set where they don't fit.
  bool take(PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    const auto by_position = static_cast<size_t>(count);
    if (by_position > parameters_.by_position) {
      PyErr_Format(PyExc_TypeError, "%s() takes up to %zu arguments without their names, not %zd", parameters_.function,
                   parameters_.by_position, count);
      return false;
    }
    for (size_t at = 0; at < by_position; ++at) given_[at] = args[at];
    const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t at = 0; at < named; ++at) {
      if (!take_named(PyTuple_GET_ITEM(keywords, at), args[count + at])) return false;
    }
    return by_position >= parameters_.required || has_required();
  }

  // Of each type: what was given, else what stands in the place already. False with an error set where it is of another type.
  bool read(size_t at, PyObject** text) const {
    if (given_[at] == nullptr) return true;
    if (PyUnicode_Check(given_[at])) return *text = given_[at], true;
    PyErr_Format(PyExc_TypeError, "%s() takes a str as %s, not %s", parameters_.function, parameters_.names[at],
                 Py_TYPE(given_[at])->tp_name);
    return false;
  }
  bool read(size_t at, uint64_t* number) const {
    if (given_[at] == nullptr) return true;
    *number = PyLong_AsUnsignedLongLongMask(given_[at]);
    return *number != UINT64_MAX || PyErr_Occurred() == nullptr;
  }
  bool read(size_t at, uint32_t* number) const {
    uint64_t wide = *number;
    const bool read_wide = read(at, &wide);
    return *number = static_cast<uint32_t>(wide), read_wide;
  }
  bool read(size_t at, int64_t* number) const {
    if (given_[at] == nullptr) return true;
    *number = PyLong_AsLongLong(given_[at]);
    return *number != -1 || PyErr_Occurred() == nullptr;
  }

 private:
  bool take_named(PyObject* name, PyObject* value) {
    for (size_t at = 0; at < N; ++at) {
      if (given_[at] == nullptr && PyUnicode_CompareWithASCIIString(name, parameters_.names[at]) == 0) {
        return given_[at] = value, true;
      }
    }
    PyErr_Format(PyExc_TypeError, "%s() has no parameter %R, or has it already", parameters_.function, name);
    return false;
  }

  bool has_required() const {
    for (size_t at = 0; at < parameters_.required; ++at) {
      if (given_[at] != nullptr) continue;
      PyErr_Format(PyExc_TypeError, "%s() needs the argument %s", parameters_.function, parameters_.names[at]);
      return false;
    }
    return true;
  }

  const Parameters& parameters_;
  PyObject* given_[N] = {};
};

// A method table's entry for a function that takes its arguments by position or by name.
using FunctionWithNames = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

inline PyMethodDef with_names(const char* name, FunctionWithNames function, const char* documentation) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), METH_FASTCALL | METH_KEYWORDS, documentation};
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

// What a range was left by, as support/texts.py tells it; null and empty where it ended well.
class FailureTexts {
 public:
  FailureTexts(PyObject* error, PyObject* stacktrace)
      : failed_(error != nullptr && PyUnicode_GET_LENGTH(error) > 0),
        error_(error, kMaxErrorBytes),
        stacktrace_(failed_ ? stacktrace : nullptr, kMaxStacktraceBytes) {}

  Ending ending(int64_t cpu_time_ns) const { return {error_.text(), stacktrace_.text(), {}, cpu_time_ns}; }
  uint32_t flags() const { return failed_ ? uint32_t{kError} : 0; }

 private:
  bool failed_;
  Utf8 error_, stacktrace_;
};

}  // namespace recfn
