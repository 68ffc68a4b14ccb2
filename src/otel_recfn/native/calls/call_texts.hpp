// What calls are called, as Python's `sources/calls.py` says it: made here, because running Python
// in a profile function would run the program's signal handlers too, in the middle of something
// else.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "core/record.hpp"
#include "cpython/python.hpp"
#include "python/arguments.hpp"

namespace recfn {

// A C function that is called, as CPython tells of it.
struct CFunction {
  const PyMethodDef* definition = nullptr;  // null: it is none that is told of
  PyObject* bound_to = nullptr;             // null: to nothing, or to a module

  static CFunction from_builtin(PyObject* callable) {
    const auto* function = reinterpret_cast<PyCFunctionObject*>(callable);
    return {function->m_ml, function->m_self};
  }

  // `first`: the first argument, null where there is none.
  static CFunction from_method(PyObject* callable, PyObject* first) {
    if (first == nullptr) return {};
    return {reinterpret_cast<PyMethodDescrObject*>(callable)->d_method, first};
  }

  static CFunction from_callable(PyObject* callable, PyObject* first) {
    if (PyCFunction_Check(callable)) return from_builtin(callable);
    return Py_TYPE(callable) == &PyMethodDescr_Type ? from_method(callable, first) : CFunction{};
  }
};

// What is not shown of a call, or who names it.
enum class Hides : uint8_t { kNothing = 0, kItself = 1, kCallees = 2, kAskFrame = 3 };

// What calls of a code object or C function are called, or what is not shown of them.
struct CallName {
  std::string text;
  Hides hides = Hides::kNothing;
  Reference frame_namer;  // kAskFrame: names each call by its frame
};

inline Text text_of(const std::string& text) {
  return {text.data(), static_cast<uint32_t>(text.size())};
}

inline std::string as_utf8(PyObject* string) {
  const Utf8 utf8(string, kMaxNameBytes);
  return {utf8.text().data != nullptr ? utf8.text().data : "", utf8.text().size};
}

inline bool read_texts(PyObject* owner, const char* name, std::vector<std::string>& texts) {
  const Reference attribute(PyObject_GetAttrString(owner, name));
  const Reference all(attribute ? PySequence_Fast(attribute.get(), "a sequence of str") : nullptr);
  if (!all) return false;
  texts.clear();
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(all.get()); ++i) {
    texts.push_back(as_utf8(PySequence_Fast_GET_ITEM(all.get(), i)));
  }
  return true;
}

inline bool begins_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

inline const std::string* start_among(const std::vector<std::string>& starts,
                                      const std::string& text) {
  const auto found = std::find_if(starts.begin(), starts.end(),
                                  [&text](const auto& start) { return begins_with(text, start); });
  return found != starts.end() ? &*found : nullptr;
}

inline bool ends_with_any(const std::vector<std::string>& ends, const std::string& text) {
  return std::any_of(ends.begin(), ends.end(), [&text](const std::string& end) {
    return text.size() >= end.size() &&
           text.compare(text.size() - end.size(), end.size(), end) == 0;
  });
}

// A place is a file, or, with a slash at its end, a folder.
inline bool is_under_any(const std::vector<std::string>& paths, const std::string& file) {
  return std::any_of(paths.begin(), paths.end(), [&file](const std::string& path) {
    return !path.empty() && path.back() == '/' ? begins_with(file, path) : file == path;
  });
}

class CallTexts {
 public:
  // Reads what Python's ProgramTexts says. False with the error set.
  bool read(PyObject* texts) {
    return read_texts(texts, "prefixes", prefixes_) && read_texts(texts, "own", own_) &&
           read_texts(texts, "own_that_calls", own_that_calls_) &&
           read_texts(texts, "asked", asked_) && read_texts(texts, "included", included_) &&
           read_texts(texts, "excluded", excluded_);
  }

  // Of calls that run this code from that line on. Nothing with Hides::kAskFrame where Python has
  // to be asked.
  CallName code_name(PyCodeObject* code, int line) const {
    CallName name;
    const std::string file = as_utf8(code->co_filename);
    const std::string trimmed_file = trimmed(file);
    if (start_among(own_, file) != nullptr) {
      name.hides = start_among(own_that_calls_, file) != nullptr ? Hides::kItself : Hides::kCallees;
    } else if (!selects(file, trimmed_file)) {
      name.hides = Hides::kItself;
    } else if (ends_with_any(asked_, file)) {
      name.hides = Hides::kAskFrame;
    } else {
      name.text = text_of(trimmed_file, code, line);
    }
    return name;
  }

  // A line of code, as calls of it are called; empty for ours.
  std::string line_name(PyCodeObject* code, int line) const {
    const std::string file = as_utf8(code->co_filename);
    return start_among(own_, file) == nullptr ? text_of(trimmed(file), code, line) : std::string();
  }

  // Of calls of a C function, which has a definition: its repr, without the address.
  static std::string function_name(const CFunction& function) {
    const bool is_method = function.bound_to != nullptr && !PyModule_Check(function.bound_to);
    std::string text;
    text.reserve(kUsualBytes);
    text.append(is_method ? "<built-in method " : "<built-in function ")
        .append(function.definition->ml_name);
    if (is_method) {
      text.append(" of ").append(Py_TYPE(function.bound_to)->tp_name).append(" object");
    }
    text += '>';
    return text;
  }

 private:
  static constexpr size_t kUsualBytes = 160;

  using Texts = std::vector<std::string>;

  bool selects(const std::string& file, const std::string& trimmed) const {
    const auto is_among = [&](const Texts& paths) {
      return is_under_any(paths, file) || is_under_any(paths, trimmed);
    };
    return (included_.empty() || is_among(included_)) && !is_among(excluded_);
  }

  std::string trimmed(const std::string& file) const {
    const std::string* prefix = start_among(prefixes_, file);
    return prefix != nullptr ? file.substr(prefix->size()) : file;
  }

  static std::string text_of(const std::string& trimmed_file, PyCodeObject* code, int line) {
    std::string text = trimmed_file + "(" + std::to_string(line) + "): " + as_utf8(code->co_name);
    text.resize(cut_at_character(text.data(), text.size(), kMaxNameBytes));
    return text;
  }

  Texts prefixes_, own_, own_that_calls_, asked_, included_, excluded_;
};

}  // namespace recfn
