// What becomes of an exception that a callback in Python raised.
#pragma once
#include "callbacks/callback_slots.hpp"
// It includes Python.h, which comes first.
#include <cstring>

namespace recfn {
namespace {

PyObject* report_error = nullptr;  // (handle, exception, name of the range) -> whether it is the program's own and goes on to it

int raise_again(void* error) {
  const Reference value(static_cast<PyObject*>(error));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.get())), value.get());
  return -1;
}

Reference take_error() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type), Py_XDECREF(traceback);
  return Reference(value);
}

// An operator can't pass on what was raised in the program while it ran (KeyboardInterrupt, or by another signal handler): the
// main thread's next Python instruction does.
void raise_in_main_thread(Reference error) {
  if (Py_AddPendingCall(raise_again, error.get()) == 0) error.release();
}

// A new reference; null with an error set where there is no memory for it.
PyObject* name_of(const at::RecordFunction& function) {
  const char* name = function.name();
  return PyUnicode_DecodeUTF8(name, static_cast<Py_ssize_t>(std::strlen(name)), "replace");
}

void hand_on_error(PythonCallback& callback, const at::RecordFunction& function) {
  Reference error = take_error();
  const Reference is_the_programs(PyObject_CallFunction(report_error, "KON", callback.handle, error.get(), name_of(function)));
  if (!is_the_programs) return raise_in_main_thread(take_error());
  if (is_the_programs.get() == Py_True) return raise_in_main_thread(std::move(error));
  slots().fail(callback);
}

}  // namespace
}  // namespace recfn
