// What becomes of an exception that a callback in Python raised.
#pragma once
#include "callbacks/callback_slots.hpp"
// It includes Python.h, which comes first.
#include <cstring>

#include "cpython/raised.hpp"

namespace recfn {
namespace {

PyObject* report_error = nullptr;  // (handle, exception, name of the range) -> whether it is the program's own and goes on to it

// A new reference; null with an error set where there is no memory for it.
PyObject* name_of(const at::RecordFunction& function) {
  const char* name = function.name();
  return PyUnicode_DecodeUTF8(name, static_cast<Py_ssize_t>(std::strlen(name)), "replace");
}

void hand_on_error(PythonCallback& callback, const at::RecordFunction& function) {
  Reference error(take_raised());
  const Reference is_the_programs(PyObject_CallFunction(report_error, "KON", callback.handle, error.get(), name_of(function)));
  if (!is_the_programs) return raise_in_main_thread(take_raised());
  if (is_the_programs.get() == Py_True) return raise_in_main_thread(error.release());
  slots().fail(callback);
}

}  // namespace
}  // namespace recfn
