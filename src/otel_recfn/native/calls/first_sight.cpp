#include "calls/first_sight.hpp"

#include <dlfcn.h>
#include <frameobject.h>

#include <utility>

#include "calls/code_names.hpp"
#include "core/registry.hpp"
#include "cpython/python.hpp"
#include "python/text.hpp"

namespace recfn {
namespace {

constexpr int kFirstCallSite = -3;  // from here on downwards, instead of an instruction: of the call that it makes

// The same, or null where it isn't of a library or the program, but may be freed: pybind11 makes and frees such names.
const char* in_library(const char* text) {
  Dl_info library;
  return dladdr(text, &library) != 0 ? text : nullptr;
}

}  // namespace

CallName hashed(CallName name) {
  const ThreadBuffer* buffer = registry().current();
  name.hash = buffer != nullptr ? hash_name(name.name(), buffer->name_seed) : 0;
  return name;
}

int without_name() {
  if (!PyErr_Occurred()) return 0;
  const bool ours = PyErr_ExceptionMatches(PyExc_MemoryError) || PyErr_ExceptionMatches(PyExc_RecursionError);
  if (ours) PyErr_Clear();
  return ours ? 0 : -1;
}

bool FirstSight::read(PyObject* texts) {
  Made of_code(PyObject_GetAttrString(texts, "of_code"));
  if (of_code.object == nullptr || !texts_.read(texts)) return false;
  std::swap(of_code_, of_code.object);
  functions_.clear();
  recent_names.clear();
  ++version_;
  return true;
}

// What Python answers where only it knows.
bool FirstSight::ask_python(PyObject* code, int line, CallName& name) {
  const Made asked(Py_NewRef(of_code_));
  const Made answer(PyObject_CallFunction(asked.object, "Oi", code, line));
  if (answer.object == nullptr) return false;
  name.hides = Hides::kNothing;
  if (PyUnicode_Check(answer.object)) {
    const Utf8 utf8(answer.object, kMaxNameBytes);
    name.text.assign(utf8.text().data != nullptr ? utf8.text().data : "", utf8.text().size);
  } else if (PyLong_Check(answer.object)) {
    name.hides = static_cast<Hides>(PyLong_AsLong(answer.object));
  } else {
    name.of_frame = Py_NewRef(answer.object);
    name.hides = Hides::kAskFrame;
  }
  return true;
}

const CallName* FirstSight::of_code(PyObject* code, PyFrameObject* frame, int instruction) {
  const uint64_t version = version_;
  const int line = PyFrame_GetLineNumber(frame);
  CallName name = texts_.of_code(reinterpret_cast<PyCodeObject*>(code), line);
  if (name.hides == Hides::kAskFrame && !ask_python(code, line, name)) return nullptr;
  PyObject* const of_frame = name.of_frame;
  const CallName* kept = CodeNames::keep(code, instruction, version, hashed(std::move(name)));
  if (kept == nullptr) Py_XDECREF(of_frame);
  return kept;
}

const CallName* FirstSight::of_call_site(PyObject* code, PyFrameObject* frame, int instruction) {
  const int place = kFirstCallSite - instruction;
  if (const CallName* known = CodeNames::find(code, place, version_)) return known;
  CallName line;
  line.text = texts_.of_line(reinterpret_cast<PyCodeObject*>(code), PyFrame_GetLineNumber(frame));
  return CodeNames::keep(code, place, version_, std::move(line));
}

const CallName* FirstSight::of_function(PyObject* callable, const CFunction& function) {
  CallName name;
  name.text = CallTexts::of_function(callable, function);
  name.in_library = function.definition != nullptr ? in_library(function.definition->ml_name) : nullptr;
  return functions_.keep(function, hashed(std::move(name)));
}

}  // namespace recfn
