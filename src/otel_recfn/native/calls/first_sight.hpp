// Calls that have no name yet: it is made, and kept for the next ones.
#pragma once
#include "calls/call_texts.hpp"
#include "calls/function_names.hpp"

namespace recfn {

class FirstSight {
 public:
  // From now on calls are called as Python's ProgramTexts say. False with the error set.
  bool read(PyObject* texts);

  // Of calls that run this code from that instruction on. Null with the error set, or where CPython has no place for it.
  const CallName* of_code(PyObject* code, PyFrameObject* frame, int instruction);
  // Of the line that the frame is at, where it calls. Without a text for ours; null as above. Runs no Python.
  const CallName* of_call_site(PyObject* code, PyFrameObject* frame, int instruction);
  // Of calls of a C function; null where it has no definition.
  const CallName* of_function(PyObject* callable, const CFunction& function);

  // Another number each time that names change.
  uint64_t version() const { return version_; }
  const FunctionNames& functions() const { return functions_; }

 private:
  bool ask_python(PyObject* code, int line, CallName& name);

  uint64_t version_ = 0;
  PyObject* of_code_ = nullptr;
  CallTexts texts_;
  FunctionNames functions_;
};

// With the hash that threads' dictionaries have.
CallName hashed(CallName name);

// A name could not be had. Returns -1 where that was a signal handler's doing, whose exception is the program's.
int without_name();

}  // namespace recfn
